#include "models/tokenizers/t5.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/fields.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

std::string StepType(const Json& step) {
  const Json* type = FindField(step, "type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

// Returns the first Precompiled step of a normalizer, or null if it has none.
Json PrecompiledStep(const Json& normalizer) {
  const Json* steps = FindField(normalizer, "normalizers");
  if (steps == nullptr || !steps->is_array()) {
    return StepType(normalizer) == "Precompiled" ? normalizer : Json();
  }
  const auto step = std::find_if(steps->begin(), steps->end(), [](const Json& candidate) {
    return StepType(candidate) == "Precompiled";
  });
  return step == steps->end() ? Json() : *step;
}

bool IsSentinel(const AddedToken& token) { return absl::StrContains(token.content, "<extra_id_"); }

void SetDefault(const char* content, std::optional<AddedToken>* token) {
  if (!*token || (*token)->content.empty()) *token = SpecialToken(content);
}

}  // namespace

int64_t T5Sentinels(const TokenizerSettings& settings) { return settings.extra_ids.value_or(100); }

bool IsUnigram(const Json& model) {
  const Json* type = FindField(model, "type");
  if (type != nullptr) return EqualsString(*type, "Unigram");
  return model.is_object() && FindField(model, "merges") == nullptr;  // older files have no type
}

void RebuildAsT5(Json* tokenizer) {
  (*tokenizer)["model"]["unk_id"] = kT5UnknownId;
  (*tokenizer)["model"]["byte_fallback"] = false;
  (*tokenizer)["normalizer"] = PrecompiledStep((*tokenizer)["normalizer"]);
  const Json metaspace = {
      {"type", "Metaspace"}, {"replacement", kWordStart}, {"prepend_scheme", "always"}};
  (*tokenizer)["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers", Json::array({{{"type", "WhitespaceSplit"}}, metaspace})}};
  (*tokenizer)["decoder"] = metaspace;
  (*tokenizer)["post_processor"] = nullptr;
}

PreTokenizerPtr MakeT5PreTokenizer() {
  std::vector<PreTokenizerPtr> steps;
  steps.push_back(MakeWhitespaceSplit());
  steps.push_back(MakeMetaspace(kWordStart, PrependScheme::kAlways, /*split=*/true));
  return MakePreTokenizerSequence(std::move(steps));
}

DecoderPtr MakeT5Decoder() { return MakeMetaspaceDecoder(kWordStart, /*strips_first=*/true); }

absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeT5(TokenizerSettings settings,
                                                        PipelineParts parts) {
  SetDefault("</s>", &settings.eos);
  SetDefault("<unk>", &settings.unk);
  SetDefault("<pad>", &settings.pad);
  if (!settings.additional) settings.additional.emplace();
  std::vector<AddedToken>& additional = *settings.additional;
  if (std::none_of(additional.begin(), additional.end(), IsSentinel)) {
    for (int64_t i = 0; i < T5Sentinels(settings); ++i) {
      additional.push_back(SpecialToken(absl::StrCat("<extra_id_", i, ">")));
    }
  }
  QT_RETURN_IF_ERROR(ApplySettings(settings, &parts));
  parts.suffix = {parts.ids.eos};
  parts.clean_up_spaces = settings.clean_up_spaces;
  return Pipeline::Make(std::move(parts));
}

}  // namespace quintet
