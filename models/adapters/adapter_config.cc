#include "models/adapters/adapter_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config_fields.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxAdapterConfigBytes = int64_t{4} << 20;
constexpr size_t kMaxNames = 8192;  // entries of one list or pattern
// Maximum number of regular expressions among the keys of a pattern. It is limited because each
// expression is matched with the names of all modules.
constexpr size_t kMaxRegexKeys = 64;
constexpr int64_t kMaxLayer = 1 << 20;
constexpr double kMaxAlpha = 1e6;

constexpr char kMergeWithPeft[] =
    "; merge the adapter with PEFT (merge_and_unload, then save_pretrained) and load the merged "
    "model";

// Fields that the code below reads, or that have no effect on results.
constexpr const char* kKnownFields[] = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying",
    "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
    "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern",
    "revision", "target_modules", "task_type", "use_rslora",
    // With loftq_config the base model's weights were quantised in training; the adapter is added
    // to the weights of the base model as usual.
    "loftq_config", "runtime_config"};

// The feature that a refused field would enable.
struct Refused {
  const char* field;
  const char* what;
};
constexpr Refused kRefusedFields[] = {
    {"use_dora", "DoRA adapters are not supported"},
    {"use_qalora", "QALoRA adapters are not supported"},
    {"lora_bias", "trained biases are not supported"},
    {"megatron_config", "Megatron's parallel layers are not supported"},
    {"trainable_token_indices", "trained embeddings of single tokens are not supported"},
    {"target_parameters", "adapters of parameters without a module are not supported"},
    {"layer_replication", "replicated layers are not supported"},
    {"alora_invocation_tokens", "activated LoRA (aLoRA) is not supported"},
    {"arrow_config", "Arrow's routing between adapters is not supported"},
    {"corda_config",
     "CorDA changes the weights of the base model, so its adapters are not "
     "supported"},
};

// Values that mean that a feature is off.
bool IsOff(const Json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

template <typename Container, typename T>
bool Has(const Container& names, const T& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

class ConfigParser {
 public:
  ConfigParser(const Json& file, std::string where)
      : file_(file), where_(where), fields_(file, std::move(where)) {}

  absl::StatusOr<AdapterConfig> Parse() {
    CheckKind();
    CheckRefused();
    CheckInitialization();
    if (const auto bias = fields_.String("bias"); bias && *bias != "none") {
      Refuse("bias", absl::StrCat("\"", Printable(*bias), "\": trained biases are not supported"));
    }
    config_.rank = fields_.Int("r", 1, kMaxAdapterRank).value_or(8);
    config_.alpha = fields_.Number("lora_alpha", -kMaxAlpha, kMaxAlpha).value_or(8.0);
    config_.rank_stabilized = fields_.Bool("use_rslora").value_or(false);
    config_.task = fields_.String("task_type").value_or("");
    config_.base_model = fields_.String("base_model_name_or_path").value_or("");
    config_.peft_version = fields_.String("peft_version").value_or("");
    ReadTargets();
    ReadModules("exclude_modules", &config_.excluded);
    ReadLayers();
    config_.saved = Names("modules_to_save");
    ReadPattern("rank_pattern", [&](ModuleKey key, const Json& value) {
      if (!value.is_number_integer() || value < 1 || value > kMaxAdapterRank) return false;
      config_.ranks.emplace_back(std::move(key), value.get<int64_t>());
      return true;
    });
    ReadPattern("alpha_pattern", [&](ModuleKey key, const Json& value) {
      if (!value.is_number() || !(std::abs(value.get<double>()) <= kMaxAlpha)) return false;
      config_.alphas.emplace_back(std::move(key), value.get<double>());
      return true;
    });
    QT_RETURN_IF_ERROR(fields_.status());
    return std::move(config_);
  }

 private:
  void Refuse(const std::string& field, const std::string& what) {
    fields_.Fail(
        absl::UnimplementedError(absl::StrCat(where_, ": ", field, ": ", what, kMergeWithPeft)));
  }

  void CheckKind() {
    const auto kind = fields_.String("peft_type");
    if (!kind) return fields_.Invalid("peft_type", "missing; expected \"LORA\"");
    if (*kind != "LORA") {
      Refuse("peft_type", absl::StrCat("\"", Printable(*kind),
                                       "\": only LoRA adapters (\"LORA\") are supported"));
    }
  }

  void CheckRefused() {
    for (const Refused& refused : kRefusedFields) {
      const Json* value = fields_.Find(refused.field);
      if (value != nullptr && !IsOff(*value)) Refuse(refused.field, refused.what);
    }
    for (const auto& item : file_.items()) {
      const bool known = Has(kKnownFields, item.key()) ||
                         std::any_of(std::begin(kRefusedFields), std::end(kRefusedFields),
                                     [&](const Refused& r) { return item.key() == r.field; });
      if (known || IsOff(item.value())) continue;
      Refuse(Printable(item.key()), "this field is not known, and its value may change results");
    }
  }

  // PiSSA and its relatives move a part of the base model's weights into the adapter.
  void CheckInitialization() {
    const Json* value = fields_.Find("init_lora_weights");
    if (value == nullptr || !value->is_string()) return;
    const std::string& name = value->get_ref<const std::string&>();
    for (const char* harmless : {"gaussian", "eva", "orthogonal"}) {
      if (name == harmless) return;
    }
    Refuse("init_lora_weights",
           absl::StrCat("\"", Printable(name),
                        "\" changes the weights of the base model; save the adapter with "
                        "save_pretrained(..., path_initial_model_for_weight_conversion=...)"));
  }

  // The strings of a field that is a string or a list of strings; empty if it is absent.
  std::vector<std::string> Names(const std::string& field) {
    const Json* value = fields_.Find(field);
    if (value == nullptr) return {};
    if (value->is_string()) return {value->get<std::string>()};
    std::vector<std::string> names;
    if (!value->is_array() || value->size() > kMaxNames) {
      fields_.Invalid(field, absl::StrCat("expected a list of at most ", kMaxNames, " names"));
      return {};
    }
    for (const Json& name : *value) {
      if (!name.is_string() || name.get_ref<const std::string&>().empty()) {
        fields_.Invalid(field, "expected names, got another value in the list");
        return {};
      }
      names.push_back(name.get<std::string>());
    }
    return names;
  }

  void ReadModules(const std::string& field, ModuleSet* modules) {
    const Json* value = fields_.Find(field);
    if (value == nullptr || !value->is_string()) {
      modules->suffixes = Names(field);
      return;
    }
    auto regex = ModuleRegex::Compile(value->get_ref<const std::string&>(),
                                      absl::StrCat(where_, ": ", field));
    if (!regex.ok()) return fields_.Fail(regex.status());
    modules->regex = *std::move(regex);
  }

  void ReadTargets() {
    const Json* value = fields_.Find("target_modules");
    if (value == nullptr) {
      return fields_.Invalid("target_modules",
                             "missing; expected a list of module names, a regular expression or "
                             "\"all-linear\"");
    }
    config_.all_linear = value->is_string() &&
                         absl::EqualsIgnoreCase(value->get_ref<const std::string&>(), "all-linear");
    if (!config_.all_linear) ReadModules("target_modules", &config_.targets);
  }

  void ReadLayers() {
    const Json* value = fields_.Find("layers_to_transform");
    if (value != nullptr && value->is_array()) {
      if (value->size() > kMaxNames) fields_.Invalid("layers_to_transform", "too many layers");
      for (const Json& layer : *value) {
        if (!layer.is_number_integer() || layer < 0 || layer > kMaxLayer) {
          return fields_.Invalid("layers_to_transform", "expected layer numbers from 0");
        }
        config_.layers.push_back(layer.get<int64_t>());
      }
    } else if (const auto layer = fields_.Int("layers_to_transform", 0, kMaxLayer)) {
      config_.layers.push_back(*layer);
    }
    config_.layer_lists = Names("layers_pattern");
    for (const std::string& name : config_.layer_lists) {
      const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
      });
      if (!plain) Refuse("layers_pattern", "only plain names of lists of layers are supported");
    }
  }

  template <typename Add>
  void ReadPattern(const std::string& field, Add add) {
    const Json* value = fields_.Find(field);
    if (value == nullptr) return;
    if (!value->is_object() || value->size() > kMaxNames) {
      return fields_.Invalid(field,
                             absl::StrCat("expected an object of at most ", kMaxNames, " entries"));
    }
    size_t regexes = 0;
    for (const auto& [text, number] : value->items()) {
      absl::StatusOr<ModuleKey> key = ModuleKey::Compile(text, absl::StrCat(where_, ": ", field));
      if (!key.ok()) return fields_.Fail(key.status());
      regexes += key->plain() ? 0 : 1;
      if (regexes > kMaxRegexKeys) {
        return fields_.Invalid(
            field, absl::StrCat("expected at most ", kMaxRegexKeys, " regular expressions"));
      }
      if (!add(*std::move(key), number)) {
        return fields_.Invalid(field, absl::StrCat(Printable(text), ": value out of range"));
      }
    }
  }

  const Json& file_;
  const std::string where_;
  ConfigFields fields_;
  AdapterConfig config_;
};

// Returns the layer number that PEFT finds in a module's name: the number after the last component
// that names a list of layers, such as `block` in encoder.block.0.layer.1. `lists`: the possible
// names of lists (empty: any). The first component is never taken for the name of a list.
std::optional<int64_t> LayerOf(std::string_view module, const std::vector<std::string>& lists) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= module.size();) {
    const size_t dot = std::min(module.find('.', begin), module.size());
    parts.push_back(module.substr(begin, dot - begin));
    begin = dot + 1;
  }
  const auto number = [](std::string_view part) -> std::optional<int64_t> {
    int64_t value = 0;
    if (part.empty() || part.size() > 9) return std::nullopt;
    for (const char c : part) {
      if (c < '0' || c > '9') return std::nullopt;
      value = value * 10 + (c - '0');
    }
    return value;
  };
  const auto last = [&](const std::string* list) -> std::optional<int64_t> {
    for (size_t i = parts.size(); i-- > 3;) {
      // parts[i - 2]: name of the list; parts[i - 1]: the number; parts[i]: the next component.
      if (list != nullptr && parts[i - 2] != *list) continue;
      if (const auto value = number(parts[i - 1])) return value;
    }
    return std::nullopt;
  };
  if (lists.empty()) return last(nullptr);
  for (const std::string& list : lists) {
    if (const auto value = last(&list)) return value;
  }
  return std::nullopt;
}

// Returns the value whose key in `pattern` matches `module`; `otherwise` if no key matches.
template <typename T>
absl::StatusOr<T> Lookup(const std::vector<std::pair<ModuleKey, T>>& pattern, const char* field,
                         const std::string& module, T otherwise) {
  const std::pair<ModuleKey, T>* found = nullptr;
  for (const auto& entry : pattern) {
    if (!entry.first.Matches(module)) continue;
    if (found != nullptr && found->second != entry.second) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapter_config.json: ", field, ": \"", Printable(found->first.text()),
                       "\" and \"", Printable(entry.first.text()), "\" both match ", module,
                       " but have different values; expected one value for each module"));
    }
    found = &entry;
  }
  return found == nullptr ? otherwise : found->second;
}

}  // namespace

bool ModuleSet::Contains(const std::string& module) const {
  if (regex.has_value()) return regex->Matches(module);
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](const std::string& suffix) { return EndsWithModule(module, suffix); });
}

bool AdapterConfig::Targets(const std::string& module) const {
  if (excluded.Contains(module)) return false;
  if (all_linear) return true;
  if (!targets.Contains(module)) return false;
  if (layers.empty() || targets.regex.has_value() || Has(targets.suffixes, module)) return true;
  const std::optional<int64_t> layer = LayerOf(module, layer_lists);
  return layer.has_value() && Has(layers, *layer);
}

absl::StatusOr<int64_t> AdapterConfig::RankOf(const std::string& module) const {
  return Lookup(ranks, "rank_pattern", module, rank);
}

absl::StatusOr<float> AdapterConfig::ScaleOf(const std::string& module) const {
  QT_ASSIGN_OR_RETURN(const int64_t own_rank, RankOf(module));
  QT_ASSIGN_OR_RETURN(const double own_alpha, Lookup(alphas, "alpha_pattern", module, alpha));
  const double r = static_cast<double>(own_rank);
  return static_cast<float>(own_alpha / (rank_stabilized ? std::sqrt(r) : r));
}

absl::StatusOr<AdapterConfig> ParseAdapterConfig(const std::string& json,
                                                 const std::string& where) {
  QT_ASSIGN_OR_RETURN(const Json file, ParseJson(json, where, 8));
  if (!file.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": expected a JSON object"));
  }
  return ConfigParser(file, where).Parse();
}

absl::StatusOr<AdapterConfig> ReadAdapterConfig(const std::string& directory,
                                                bool follow_symlinks) {
  std::string path = directory + "/adapter_config.json";
  if (!follow_symlinks) {
    QT_ASSIGN_OR_RETURN(path, ResolveLink(path));
  }
  QT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxAdapterConfigBytes));
  return ParseAdapterConfig(text, "adapter_config.json");
}

}  // namespace quintet
