// Requests and results of the engine. Text is already tokenized; results are delivered through a
// ResponseSink.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/options.h"
#include "models/config/sentence_modules.h"
#include "models/model.h"

namespace quintet {

enum class RequestKind : uint8_t { kGenerate, kEncode, kScore, kClassify };
enum class Priority : uint8_t { kLow, kNormal, kHigh };
enum class FinishReason : uint8_t { kEos, kStop, kLength, kDone, kCancelled, kDeadline, kError };
const char* FinishReasonName(FinishReason reason);  // "eos", "stop", ...

struct TokenLogProb {
  int32_t token = 0;
  float log_prob = 0.0f;                                // raw log-softmax, before processors
  std::vector<std::pair<int32_t, float>> alternatives;  // [top_logprobs] most likely first
};

// One generated sequence.
struct GeneratedSequence {
  std::vector<int32_t> token_ids;  // new tokens, eos included; with echo the prompt first
  // Decoded text of token_ids: without special tokens if Request::skip_special_tokens. If a stop
  // string matched, the text ends before it (with include_stop: after it). Empty if the engine has
  // no tokenizer or Request::detokenize is false.
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
  std::vector<GeneratedSequence> sequences;  // kGenerate: best first
  std::vector<ScoredTarget> targets;         // kScore: in the order of the request
  // kEncode: with Pooling::kNone the hidden states [rows, d_model], one row per token; otherwise
  // one row, whose width is d_model or the width of the modules' output.
  // kClassify: raw logits [rows, labels].
  std::vector<float> values;
  int64_t rows = 0, columns = 0;
  int64_t input_tokens = 0, prefix_tokens = 0, output_tokens = 0, cached_tokens = 0;
  uint64_t seed = 0;
  Timing timing;
};

// Receives the results of one request. These functions are called one at a time, OnTokens by the
// stepping thread or a thread of the engine's pool, the others by the stepping thread. Sinks of
// different requests may be called at the same time. The functions must not block or call the
// engine.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // Called first, when the request has left the queue and no longer counts against the queue
  // limits. Not called if the request ends in the queue.
  virtual void OnStart() {}
  // Delivers new token ids and new text of sequence `index`; later calls never change them. Called
  // for streaming requests only, and in beam search only if one sequence is returned.
  virtual void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) {
    (void)index, (void)ids, (void)text;
  }
  // Called exactly once, last.
  virtual void OnDone(absl::StatusOr<Result> result) = 0;
};

struct Request {
  RequestKind kind = RequestKind::kGenerate;
  Priority priority = Priority::kNormal;
  std::vector<int32_t> input;       // token ids, special tokens included
  AdapterHandle adapter;            // a LoRA adapter of the engine's model; null: none
  bool skip_special_tokens = true;  // omit them from result texts
  int64_t deadline_us = std::numeric_limits<int64_t>::max();  // by the monotonic clock
  std::shared_ptr<ResponseSink> sink;

  // kGenerate.
  DecodingOptions decoding;
  bool stream = false;  // pass new tokens to sink->OnTokens
  // Whether results have texts. With false, the engine's thread does not detokenize, and the caller
  // can do so in another thread. Stop strings need the texts: with false they are INVALID_ARGUMENT.
  bool detokenize = true;

  // kEncode.
  Pooling pooling = Pooling::kModules;
  bool normalize = false;  // scale embeddings to unit length, after the modules
  // The sentence-transformers modules to apply after the pooling (null: none). Not applied with
  // Pooling::kNone. They must outlive the request.
  const SentenceModules* modules = nullptr;
  int64_t prompt_tokens = 0;  // first rows that the pooling leaves out
  // Pooling::kNone: rows of zeros are appended to the result up to this number of rows.
  int64_t result_rows = 0;

  // kScore. Token ids of each target (a continuation to score). The engine adds no eos: a target
  // must contain it if it is to be scored.
  std::vector<std::vector<int32_t>> targets;
  int32_t top_logprobs = 0;
  int64_t sliding_window = 0;  // causal models, in tokens; 0: none (PackedScoring)
  bool prefix_lm = false;      // causal models: bidirectional prompt (PackedScoring)
};

// FAILED_PRECONDITION when the model lacks the head that requests of this kind need. Submit checks
// this too.
absl::Status CheckHead(RequestKind kind, const ModelConfig& config);

// INVALID_ARGUMENT when the model cannot score with the request's sliding_window or prefix_lm; the
// message names the field and the reason. Submit checks this too.
absl::Status CheckAttentionScope(const Request& request, const ModelConfig& config);

}  // namespace quintet
