// A request as the engine takes it, and its results. Text is already tokenized; results come back
// through a ResponseSink.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/options.h"

namespace quintet {

enum class RequestKind : uint8_t { kGenerate, kEncode, kScore, kClassify };
enum class Priority : uint8_t { kLow, kNormal, kHigh };
enum class FinishReason : uint8_t { kEos, kStop, kLength, kDone, kCancelled, kDeadline, kError };
const char* FinishReasonName(FinishReason reason);  // "eos", "stop", ...

enum class Pooling : uint8_t { kNone, kMean, kFirst, kLast };

struct TokenLogProb {
  int32_t token = 0;
  float log_prob = 0.0f;                                // raw log-softmax, before processors
  std::vector<std::pair<int32_t, float>> alternatives;  // top_logprobs of them, best first
};

// One generated sequence.
struct GeneratedSequence {
  std::vector<int32_t> token_ids;  // new tokens, eos included; prompt first when echo is set
  // Without special tokens and without the stop string (unless include_stop); empty when the
  // engine has no tokenizer.
  std::string text;
  std::vector<TokenLogProb> logprobs;
  float score = 0.0f;  // beam search: Hugging Face's sequences_scores
  FinishReason finish_reason = FinishReason::kEos;
  std::string matched_stop;
};

struct ScoredTarget {
  double total = 0.0;
  std::vector<TokenLogProb> tokens;
};

struct Timing {
  int64_t queue_us = 0, encode_us = 0, first_token_us = 0, decode_us = 0, total_us = 0;
};

struct Result {
  std::vector<GeneratedSequence> sequences;  // generate, best first
  std::vector<ScoredTarget> targets;         // score, in the order given
  // encode: [rows, d_model] (rows = tokens for kNone, else 1); classify: [rows, labels] raw logits
  std::vector<float> values;
  int64_t rows = 0, columns = 0;
  int64_t input_tokens = 0, prefix_tokens = 0, output_tokens = 0, cached_tokens = 0;
  uint64_t seed = 0;
  Timing timing;
};

// Receives one request's outcome. Called on the engine's thread; must neither block nor call the
// engine.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // The request has left the queue, and its place there is free. Before everything else; not called
  // when it ends in the queue.
  virtual void OnStart() {}
  // New text and ids of sequence `index`, which later calls do not take back. Streaming requests
  // only; of beams, one sequence that is to be returned.
  virtual void OnTokens(int index, absl::Span<const int32_t> ids, const std::string& text) {
    (void)index, (void)ids, (void)text;
  }
  // Exactly once, last.
  virtual void OnDone(absl::StatusOr<Result> result) = 0;
};

struct Request {
  RequestKind kind = RequestKind::kGenerate;
  Priority priority = Priority::kNormal;
  std::vector<int32_t> input;                                 // ids, special tokens included
  bool skip_special_tokens = true;                            // of texts in results
  int64_t deadline_us = std::numeric_limits<int64_t>::max();  // monotonic clock
  std::shared_ptr<ResponseSink> sink;

  // kGenerate.
  DecodingOptions decoding;
  bool stream = false;  // call OnTokens

  // kEncode.
  Pooling pooling = Pooling::kMean;
  bool normalize = false;  // to unit length

  // kScore. Targets are ids of continuations: a T5 decoder's, with eos where it is to be scored.
  std::vector<std::vector<int32_t>> targets;
  int32_t top_logprobs = 0;
  int64_t sliding_window = 0;  // causal models: PackedScoring::AttentionScope; 0: none
  bool prefix_lm = false;      // causal models: PackedScoring::AttentionScope
};

// FAILED_PRECONDITION when the model lacks the head that requests of this kind need. Submit checks
// this too.
absl::Status CheckHead(RequestKind kind, const ModelConfig& config);

// INVALID_ARGUMENT when the model cannot score with the request's sliding_window or prefix_lm:
// which of them, and why. Submit checks it too.
absl::Status CheckAttentionScope(const Request& request, const ModelConfig& config);

}  // namespace quintet
