// Conversion between protobuf messages and engine structs. Stateless. The fields of a request are
// validated here, before any other code uses them. Errors are INVALID_ARGUMENT with a message of
// the form "field: expectation, got value".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/embedding.h"
#include "engine/request.h"
#include "models/tokenizers/tokenizer.h"
#include "quintet/v1/inference.pb.h"

namespace quintet {

inline constexpr int kMaxInputs = 64, kMaxTargets = 64;  // per call
inline constexpr size_t kMaxModelNameBytes = 128, kMaxRequestIdBytes = 64;

struct InputLimits {
  int64_t max_tokens = 4096;
  int64_t max_text_bytes = 1 << 20;
  int64_t vocab = 0;
};

// The size of the inputs of a call, as far as it is known before tokenization.
struct InputSize {
  // Number of bytes of text, plus 3 for each input token id. This is about three times the number
  // of tokens.
  int64_t bytes = 0;
  // Number of bytes of text, without token ids.
  int64_t text_bytes = 0;
};
InputSize operator+(const InputSize& a, const InputSize& b);
InputSize SizeOf(const v1::Input& input);
InputSize SizeOf(const google::protobuf::RepeatedPtrField<v1::Input>& inputs);

// Returns INVALID_ARGUMENT for an enum value that this release of Quintet does not know. `most` is
// the largest known value.
absl::Status UnknownEnumValue(const std::string& field, int value, int most);

// Whether `text` is a valid CallOptions.request_id, or empty.
bool IsRequestId(absl::string_view text);
// Checks the fields model, request_id, adapter and priority.
absl::Status CheckCallOptions(const v1::CallOptions& call);

// Returns the token ids of an input, tokenizing its text if it has one. `field` names the input in
// errors. Returns FAILED_PRECONDITION if the input is text and `tokenizer` is null.
absl::StatusOr<std::vector<int32_t>> TokenizeInput(
    const v1::Input& input, const v1::CallOptions& call, const Tokenizer* tokenizer,
    const InputLimits& limits, const std::string& field, const Embedding* embedding = nullptr);

absl::StatusOr<DecodingRequest> DecodingFromProto(const v1::DecodingOptions& decoding,
                                                  const Tokenizer* tokenizer,
                                                  const InputLimits& limits);
// `priority` must have passed CheckCallOptions. UNSPECIFIED becomes kNormal.
Priority PriorityFromProto(v1::Priority priority);

struct SequenceOptions {
  bool return_text = true, return_token_ids = true, return_scores = false;
};
void WriteSequence(const GeneratedSequence& sequence, int index, const SequenceOptions& options,
                   v1::Sequence* proto);
void WriteTokenLogProbs(const std::vector<TokenLogProb>& from,
                        google::protobuf::RepeatedPtrField<v1::TokenLogProb>* to);
// Returns the value of an optional field whose default is true.
inline bool OrTrue(bool has, bool value) { return !has || value; }
// Bytes of a chunk's text and token ids, a measure of what waits to be sent.
inline int64_t ChunkBytes(const v1::GenerateChunk& chunk) {
  return static_cast<int64_t>(chunk.text().size()) + int64_t{4} * chunk.token_ids_size();
}
// Bytes of one value of `type`. UNSPECIFIED is FP32.
int64_t VectorBytes(v1::VectorType type);
// Appends the values of `result`, rounded to `type`, little-endian. UNSPECIFIED is FP32.
void AppendEmbedding(const Result& result, v1::VectorType type, std::string* values);
// Writes the values of `result` as AppendEmbedding does, and their shape and type.
void WriteEmbedding(const Result& result, v1::VectorType type, v1::Embedding* proto);
// Adds the token counts of `result` to the usage in `info`, and sets each duration in `info` to the
// maximum of its value and the same duration in `result`.
void WriteInfo(const Result& result, v1::CallInfo* info);

}  // namespace quintet
