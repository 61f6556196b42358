#include "models/config/config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config_families.h"
#include "models/config/config_fields.h"
#include "models/config/derived_config.h"

namespace quintet {
namespace {

constexpr int64_t kMaxLabels = 100000;

void ReadFamily(ConfigFields* fields, ModelConfig* config) {
  const auto type = fields->String("model_type");
  if (!type) {
    fields->Invalid("model_type", "expected t5, mt5, umt5, longt5, flash_t5 or gpt2, got none");
    return;
  }
  for (Family f :
       {Family::kT5, Family::kMT5, Family::kUMT5, Family::kLongT5, Family::kFat5, Family::kGpt2}) {
    if (*type == FamilyName(f)) {
      config->family = f;
      return;
    }
  }
  fields->Fail(absl::UnimplementedError(
      absl::StrCat("config.json: model_type \"", Printable(*type),
                   "\" is not supported; expected t5, mt5, umt5, longt5, flash_t5 or gpt2")));
}

// Returns the task head of a model class that config.json names in `architectures`, e.g.
// kLanguageModel for "T5ForConditionalGeneration"; nullopt if the family has no such class.
std::optional<Head> HeadOfClass(Family family, absl::string_view name) {
  const auto strip = [&name](absl::string_view prefix) {
    return absl::ConsumePrefix(&name, prefix);
  };
  if (family == Family::kGpt2) {
    if (!strip("GPT2")) return std::nullopt;
    if (name == "LMHeadModel") return Head::kLanguageModel;
    if (name == "Model") return Head::kNone;
    if (name == "ForSequenceClassification") return Head::kSequenceClassification;
    return std::nullopt;
  }
  // Fine-tuned mT5 and UMT5 checkpoints often name a T5 class in `architectures`. Therefore each of
  // these families accepts the class prefixes T5, MT5 and UMT5.
  if (family == Family::kFat5     ? !strip("FlashT5")
      : family == Family::kLongT5 ? !strip("LongT5")
                                  : !(strip("T5") || strip("MT5") || strip("UMT5"))) {
    return std::nullopt;
  }
  if (name == "ForConditionalGeneration" || name == "WithLMHeadModel") return Head::kLanguageModel;
  if (name == "Model") return Head::kNone;
  if (name == "EncoderModel") return Head::kEncoder;
  if (family == Family::kLongT5) return std::nullopt;  // transformers has no other heads for it
  if (name == "ForSequenceClassification") return Head::kSequenceClassification;
  if (name == "ForTokenClassification") return Head::kTokenClassification;
  if (name == "ForQuestionAnswering") return Head::kQuestionAnswering;
  return std::nullopt;
}

void ReadHead(ConfigFields* fields, ModelConfig* config) {
  const nlohmann::json* classes = fields->Find("architectures");
  if (classes == nullptr || (classes->is_array() && classes->empty())) {
    config->head = Head::kLanguageModel;
    return;
  }
  if (!classes->is_array() || !(*classes)[0].is_string()) {
    fields->Invalid("architectures", "expected a list of class names");
    return;
  }
  const std::string& name = (*classes)[0].get_ref<const std::string&>();
  const auto head = HeadOfClass(config->family, name);
  if (!head) {
    fields->Fail(absl::UnimplementedError(
        absl::StrCat("config.json: architectures: class ", Printable(name), " of model_type ",
                     FamilyName(config->family), " is not supported")));
    return;
  }
  config->head = *head;
}

// As in Hugging Face, id2label {"0": "name", ...} overrides num_labels.
void ReadLabels(ConfigFields* fields, ModelConfig* config) {
  config->labels = fields->Int("num_labels", 1, kMaxLabels).value_or(2);
  const nlohmann::json* map = fields->Find("id2label");
  if (map != nullptr) {
    if (!map->is_object() || map->empty() || map->size() > static_cast<size_t>(kMaxLabels)) {
      fields->Invalid("id2label",
                      absl::StrCat("expected an object of 1 to ", kMaxLabels, " labels"));
      return;
    }
    config->labels = static_cast<int64_t>(map->size());
  }
  for (int64_t i = 0; i < config->labels; ++i) {
    if (map == nullptr) {
      config->label_names.push_back(absl::StrCat("LABEL_", i));
      continue;
    }
    const auto label = map->find(absl::StrCat(i));
    if (label == map->end() || !(label->is_string() || label->is_number())) {
      fields->Invalid("id2label", absl::StrCat("expected a string for each id from 0 to ",
                                               config->labels - 1, ", id ", i, " has none"));
      return;
    }
    config->label_names.push_back(label->is_string() ? label->get<std::string>() : label->dump());
  }
  const std::string problem = fields->String("problem_type").value_or("");
  if (problem == "regression") {
    config->label_kind = LabelKind::kValues;
  } else if (problem == "multi_label_classification" || config->labels == 1) {
    config->label_kind = LabelKind::kIndependent;
  } else if (!problem.empty() && problem != "single_label_classification") {
    fields->Invalid("problem_type", absl::StrCat("expected regression, single_label_classification "
                                                 "or multi_label_classification, got \"",
                                                 Printable(problem), "\""));
  }
  if (config->head == Head::kQuestionAnswering && config->labels != 2) {
    fields->Invalid("num_labels",
                    absl::StrCat("question answering has 2 outputs, got ", config->labels));
  }
}

void ReadSpecialIds(ConfigFields* fields, ModelConfig* config) {
  const bool gpt2 = config->family == Family::kGpt2;
  // FAT5's default pad id is -100, which is not a token. Any negative id means that there is none.
  const auto pad =
      fields->Int("pad_token_id", std::numeric_limits<int32_t>::min(), config->vocab - 1);
  const bool pad_given = fields->Find("pad_token_id") != nullptr;
  const int64_t default_pad = gpt2 || config->family == Family::kFat5 ? -1 : 0;
  config->pad_id =
      static_cast<int32_t>(pad_given ? std::max<int64_t>(pad.value_or(-1), -1) : default_pad);
  const auto id = [&](const char* name) {
    return static_cast<int32_t>(fields->Int(name, 0, config->vocab - 1).value_or(-1));
  };
  config->bos_id = id("bos_token_id");
  config->eos_ids = fields->TokenIds("eos_token_id", config->vocab, 64);
  const int32_t default_eos = gpt2 ? 50256 : 1;
  if (fields->Find("eos_token_id") == nullptr && default_eos < config->vocab) {
    config->eos_ids = {default_eos};
  }
  config->decoder_start_id = id("decoder_start_token_id");
  if (!gpt2 && config->decoder_start_id < 0) config->decoder_start_id = 0;
}

// Reads the object `quintet` that `quintet convert` adds to config.json (models/weights/table.h).
void ReadConverted(const nlohmann::json& object, const std::string& where, ConfigFields* fields,
                   ModelConfig* config) {
  if (!object.is_object()) {
    fields->Invalid("quintet", "expected an object");
    return;
  }
  ConfigFields converted(object, absl::StrCat(where, ": quintet"));
  const auto format = converted.Int("format", 0, std::numeric_limits<int32_t>::max());
  if (converted.status().ok() && format != 1) {
    converted.Fail(absl::UnimplementedError(
        absl::StrCat(where, ": quintet: format: expected 1, got ", format.value_or(0),
                     "; convert the checkpoint again")));
  }
  config->converted_dtype = converted.String("dtype").value_or("");
  const std::string& dtype = config->converted_dtype;
  if (dtype != "f32" && dtype != "bf16" && dtype != "f16" && dtype != "int8" && dtype != "fp8") {
    converted.Invalid("dtype", absl::StrCat("expected f32, bf16, f16, int8 or fp8, got \"",
                                            Printable(dtype), "\""));
  }
  const auto scale = converted.Bool("scale_logits");
  if (!scale) converted.Invalid("scale_logits", "expected true or false, got none");
  config->scale_logits = scale;
  config->scale_logits_given = true;
  fields->Fail(converted.status());
}

absl::StatusOr<ModelConfig> ReadFields(const nlohmann::json& parsed, const std::string& where) {
  ConfigFields fields(parsed, where);
  ModelConfig config;
  ReadFamily(&fields, &config);
  QT_RETURN_IF_ERROR(fields.status());
  ReadHead(&fields, &config);
  if (fields.Find("quantization_config") != nullptr) {
    fields.Fail(absl::UnimplementedError(absl::StrCat(
        where, ": quantization_config: checkpoints quantized by other tools are not supported")));
  }
  if (config.family == Family::kGpt2) {
    ReadGpt2Fields(&fields, &config);
  } else if (config.family == Family::kFat5) {
    ReadFat5Fields(&fields, &config);
  } else {
    ReadT5Fields(&fields, &config);
  }
  ReadLabels(&fields, &config);
  ReadSpecialIds(&fields, &config);
  if (const nlohmann::json* converted = fields.Find("quintet")) {
    ReadConverted(*converted, where, &fields, &config);
  }
  // For distances of at least `exact`, T5's bucket number grows with log(distance / exact) /
  // log(max_distance / exact). max_distance must therefore be greater than `exact`. `exact` is a
  // quarter of the number of buckets, or half of that number in causal stacks.
  if (config.position == PositionEncoding::kT5 &&
      config.bias_max_distance <= config.bias_buckets / 2) {
    fields.Invalid("relative_attention_max_distance",
                   absl::StrCat("expected more than half of the ", config.bias_buckets,
                                " buckets, got ", config.bias_max_distance));
  }
  QT_RETURN_IF_ERROR(fields.status());
  return config;
}

// Returns the name of the file with a model's configuration, for messages.
std::string ConfigName(const std::string& model) {
  return ModelFormatOf(model) == ModelFormat::kDirectory
             ? "config.json"
             : Printable(model.substr(model.rfind('/') + 1));
}

}  // namespace

std::optional<Activation> ActivationByName(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu" || name == "gelu_python") return Activation::kGeluErf;
  if (name == "gelu_new" || name == "gelu_fast" || name == "gelu_pytorch_tanh") {
    return Activation::kGeluTanh;
  }
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "tanh") return Activation::kTanh;
  return std::nullopt;
}

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json, const std::string& where) {
  QT_ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseJson(json, where));
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": expected an object"));
  }
  return ReadFields(parsed, where);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory) {
  QT_ASSIGN_OR_RETURN(const nlohmann::json file, ReadConfigFile(directory));
  return ReadFields(file, ConfigName(directory));
}

}  // namespace quintet
