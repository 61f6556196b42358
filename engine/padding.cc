#include "engine/padding.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "models/checkpoint/weight_files.h"

namespace quintet {

absl::StatusOr<InputPadding> InputPadding::Create(absl::string_view text, absl::string_view field,
                                                  int64_t max_tokens, Pooling pooling,
                                                  const ModelConfig& config) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  };
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  InputPadding padding;
  if (!absl::SimpleAtoi(parts.first, &padding.tokens_) || padding.tokens_ < 1 ||
      padding.tokens_ > max_tokens) {
    return wrong(absl::StrCat(Printable({parts.first.data(), parts.first.size()}),
                              " is not in [1, ", max_tokens, "], the maximum input length"));
  }
  if (parts.second == "zero") {
    padding.mode_ = PadMode::kZero;
  } else if (text.size() > parts.first.size() && parts.second != "attend") {
    return wrong(absl::StrCat("expected N, N:attend or N:zero, got ",
                              Printable({text.data(), text.size()})));
  }
  if (pooling != Pooling::kNone) return wrong("needs pooling none, which returns all rows");
  if (!config.has_encoder()) return wrong("needs a model with an encoder");
  if (config.pad_id < 0) return wrong("the model has no padding token (config.json: pad_token_id)");
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

int64_t InputPadding::ZeroRows(int64_t rows) const {
  return mode_ == PadMode::kZero ? std::max<int64_t>(tokens_ - rows, 0) : 0;
}

}  // namespace quintet
