// Between the wire's messages and the engine's structs. No state; every check of a request's own
// fields is here, so that nothing unchecked goes further. Errors: INVALID_ARGUMENT "field: what,
// limit, got".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "models/tokenizer.h"
#include "quintet/v1/inference.pb.h"

namespace quintet {

inline constexpr int kMaxInputs = 64, kMaxTargets = 64;  // of one call
inline constexpr size_t kMaxModelNameBytes = 128;

struct InputLimits {
  int64_t max_tokens = 4096;
  int64_t max_text_bytes = 1 << 20;
  int64_t vocab = 0;
};

// The size of inputs before they are tokenized.
struct InputSize {
  int64_t bytes = 0;       // of text, and 3 for each id: three times their number of tokens, about
  int64_t text_bytes = 0;  // of text alone
};
InputSize operator+(const InputSize& a, const InputSize& b);
InputSize SizeOf(const v1::Input& input);
InputSize SizeOf(const google::protobuf::RepeatedPtrField<v1::Input>& inputs);

// INVALID_ARGUMENT of an enum's number that this version does not know.
absl::Status OutOfEnum(const std::string& field, int value, int most);

// Checks the fields of every call: model, request_id, priority.
absl::Status CheckCallOptions(const v1::CallOptions& call);

// Ids of an input. `field` names it in errors. Text needs a tokenizer (FAILED_PRECONDITION without
// one).
absl::StatusOr<std::vector<int32_t>> InputIds(const v1::Input& input, const v1::CallOptions& call,
                                              const Tokenizer* tokenizer, const InputLimits& limits,
                                              const std::string& field);

absl::StatusOr<DecodingRequest> ReadDecoding(const v1::DecodingOptions& decoding,
                                             const Tokenizer* tokenizer, const InputLimits& limits);
// Of a priority that CheckCallOptions has let pass.
Priority ReadPriority(v1::Priority priority);

struct SequenceOptions {
  bool return_text = true, return_token_ids = true, return_scores = false;
};
void WriteSequence(const GeneratedSequence& sequence, int index, const SequenceOptions& options,
                   v1::Sequence* proto);
void WriteTokenLogProbs(const std::vector<TokenLogProb>& from,
                        google::protobuf::RepeatedPtrField<v1::TokenLogProb>* to);
// Rounds to the type asked for; little-endian.
void WriteEmbedding(const Result& result, v1::VectorType type, v1::Embedding* proto);
void WriteInfo(const Result& result, v1::CallInfo* info);

}  // namespace quintet
