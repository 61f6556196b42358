// Padding of encode requests to a fixed number of tokens, as pipelines of image and video models
// use their text encoders. All front ends use it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/request.h"
#include "models/config/config.h"

namespace quintet {

enum class PadMode : uint8_t {
  // Padding tokens are part of the input: every token attends to them, and they have hidden states
  // (Flux, Stable Diffusion 3, CogVideoX, LTX-Video).
  kAttend,
  // The input is encoded without padding, and the rows of the padding are zero (Wan).
  kZero,
};

// Immutable, thread safe.
class InputPadding {
 public:
  InputPadding() = default;  // no padding
  // Parses "N" or "N:MODE", where MODE is attend (default) or zero. INVALID_ARGUMENT unless N is in
  // [1, max_tokens] and the model has an encoder and a padding token, and the states of all tokens
  // are returned (Pooling::kNone). The message begins with `field`.
  static absl::StatusOr<InputPadding> Create(absl::string_view text, absl::string_view field,
                                             int64_t max_tokens, Pooling pooling,
                                             const ModelConfig& config);

  int64_t tokens() const { return tokens_; }  // 0: no padding
  // Truncates `ids` to tokens(), except for a final end-of-sequence id, which is kept as the last
  // one. In the mode kAttend, also appends padding tokens up to tokens().
  void Apply(std::vector<int32_t>* ids) const;
  // Number of rows of zeros that follow `rows` rows of hidden states; 0 unless the mode is kZero.
  int64_t ZeroRows(int64_t rows) const;

 private:
  int64_t tokens_ = 0;
  PadMode mode_ = PadMode::kAttend;
  int32_t pad_id_ = 0;
  std::vector<int32_t> eos_ids_;
};

}  // namespace quintet
