// Padding of encode requests to a fixed number of tokens, as pipelines of image and video models
// use their text encoders. All front ends use it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/request.h"
#include "models/config/config.h"

namespace quintet {

enum class PadMode : uint8_t {
  // The padding tokens become part of the input: all tokens attend to them, and they have hidden
  // states (Flux, Stable Diffusion 3, CogVideoX, LTX-Video).
  kAttend,
  // The input is encoded without padding; rows of zeros are appended to its hidden states (Wan).
  kZero,
};

// Immutable, thread safe.
class InputPadding {
 public:
  InputPadding() = default;  // no padding
  // Pads each input to `tokens` tokens. Returns INVALID_ARGUMENT, with a message that begins with
  // "pad_to: ", unless `tokens` is in [1, max_tokens], the model has an encoder and a padding
  // token, and `pooling` is Pooling::kNone.
  static absl::StatusOr<InputPadding> Create(int64_t tokens, PadMode mode, int64_t max_tokens,
                                             Pooling pooling, const ModelConfig& config);

  int64_t tokens() const { return tokens_; }  // 0: no padding
  // Truncates `ids` to tokens(), except for a final end-of-sequence id, which is kept as the last
  // one. In the mode kAttend, also appends padding tokens up to tokens().
  void Apply(std::vector<int32_t>* ids) const;
  // Number of rows that a result has after rows of zeros have been appended; 0 unless the mode is
  // kZero.
  int64_t result_rows() const { return mode_ == PadMode::kZero ? tokens_ : 0; }

 private:
  int64_t tokens_ = 0;
  PadMode mode_ = PadMode::kAttend;
  int32_t pad_id_ = 0;
  std::vector<int32_t> eos_ids_;
};

// Parses "N" or "N:MODE" of a command line; MODE is attend (default) or zero. Returns
// INVALID_ARGUMENT, with a message that begins with "pad_to: ", for anything else and if N is less
// than 1.
absl::Status ParsePadding(absl::string_view text, int64_t* tokens, PadMode* mode);

}  // namespace quintet
