#include "engine/padding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/checkpoint/weight_files.h"

namespace quintet {
namespace {

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("pad_to: ", parts...));
}

}  // namespace

absl::StatusOr<InputPadding> InputPadding::Create(int64_t tokens, PadMode mode, int64_t max_tokens,
                                                  Pooling pooling, const ModelConfig& config) {
  if (tokens < 1 || tokens > max_tokens) {
    return Wrong(tokens, " is not in [1, ", max_tokens, "], the maximum input length");
  }
  if (pooling != Pooling::kNone) return Wrong("needs pooling none, which returns all rows");
  if (!config.has_encoder()) return Wrong("needs a model with an encoder");
  if (config.pad_id < 0) return Wrong("the model has no padding token (config.json: pad_token_id)");
  InputPadding padding;
  padding.tokens_ = tokens;
  padding.mode_ = mode;
  padding.pad_id_ = config.pad_id;
  padding.eos_ids_ = config.eos_ids;
  return padding;
}

void InputPadding::Apply(std::vector<int32_t>* ids) const {
  const auto tokens = static_cast<size_t>(tokens_);
  if (tokens == 0 || ids->empty()) return;
  const int32_t last = ids->back();
  if (ids->size() > tokens) {
    ids->resize(tokens);
    if (std::find(eos_ids_.begin(), eos_ids_.end(), last) != eos_ids_.end()) ids->back() = last;
  }
  if (mode_ == PadMode::kAttend) ids->resize(tokens, pad_id_);
}

absl::Status ParsePadding(absl::string_view text, int64_t* tokens, PadMode* mode) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  const bool has_mode = parts.first.size() < text.size();
  *mode = parts.second == "zero" ? PadMode::kZero : PadMode::kAttend;
  if (absl::SimpleAtoi(parts.first, tokens) && *tokens >= 1 &&
      (!has_mode || parts.second == "attend" || parts.second == "zero")) {
    return absl::OkStatus();
  }
  return Wrong("expected N, N:attend or N:zero, got ", Printable({text.data(), text.size()}));
}

}  // namespace quintet
