#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/json.h"
#include "models/config/config.h"
#include "models/config/config_fields.h"

namespace quintet {
namespace {

constexpr int64_t kMaxFileBytes = 4 << 20;
// Ids are checked against the vocabulary where they are used.
constexpr int64_t kAnyId = int64_t{1} << 31;
constexpr int64_t kAnyCount = int64_t{1} << 31;
constexpr double kAnyNumber = 1e9;
constexpr size_t kMaxIds = 100000;
constexpr size_t kMaxShownValue = 80;  // characters

std::optional<int> ReadEarlyStopping(ConfigFields* fields) {
  const nlohmann::json* value = fields->Find("early_stopping");
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>() ? 1 : 0;
  if (value->is_string() && value->get_ref<const std::string&>() == "never") return 2;
  fields->Invalid("early_stopping", "expected true, false or \"never\"");
  return std::nullopt;
}

std::vector<std::vector<int32_t>> ReadBadWords(const std::string& where, ConfigFields* fields) {
  const nlohmann::json* value = fields->Find("bad_words_ids");
  std::vector<std::vector<int32_t>> words;
  if (value == nullptr) return words;
  if (!value->is_array() || value->size() > kMaxIds) {
    fields->Invalid("bad_words_ids",
                    absl::StrCat("expected a list of at most ", kMaxIds, " lists"));
    return words;
  }
  for (const nlohmann::json& word : *value) {
    if (!word.is_array() || word.empty()) {
      fields->Invalid("bad_words_ids", "expected lists of at least one id");
      return {};
    }
    const nlohmann::json as_field = {{"bad_words_ids", word}};
    ConfigFields one(as_field, where);
    words.push_back(one.TokenIds("bad_words_ids", kAnyId, kMaxIds));
    fields->Fail(one.status());
    if (!fields->status().ok()) return {};
  }
  return words;
}

// Lists fields that change what transformers generates, unless they have their neutral value. null
// is always neutral. Fields that affect only speed (use_cache, prompt_lookup_num_tokens, ...) are
// not listed.
std::vector<std::string> UnsupportedFields(const std::string& where, const ConfigFields& fields) {
  const struct {
    const char* name;
    nlohmann::json neutral;  // value without effect; null: none
  } known[] = {{"constraints", nullptr},
               {"diversity_penalty", 0},
               {"dola_layers", nullptr},
               {"encoder_no_repeat_ngram_size", 0},
               {"encoder_repetition_penalty", 1},
               {"epsilon_cutoff", 0},
               {"eta_cutoff", 0},
               {"exponential_decay_length_penalty", nullptr},
               {"force_words_ids", nullptr},
               {"guidance_scale", 1},
               {"is_assistant", false},
               {"max_time", nullptr},
               {"num_beam_groups", 1},
               {"penalty_alpha", 0},
               {"remove_invalid_values", false},
               {"renormalize_logits", false},
               {"sequence_bias", nullptr},
               {"stop_strings", nullptr},
               {"token_healing", false},
               {"top_h", nullptr},
               {"watermarking_config", nullptr}};
  std::vector<std::string> found;
  for (const auto& one : known) {
    const nlohmann::json* value = fields.Find(one.name);
    if (value == nullptr || *value == one.neutral) continue;
    // Escaped to ASCII, which is safe to print.
    std::string text = value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (text.size() > kMaxShownValue) text = text.substr(0, kMaxShownValue) + "...";
    found.push_back(absl::StrCat(where, ": ", one.name, " is ", text));
  }
  return found;
}

std::optional<int32_t> ReadId(ConfigFields* fields, const char* name) {
  const auto id = fields->Int(name, 0, kAnyId - 1);
  return id ? std::optional<int32_t>(static_cast<int32_t>(*id)) : std::nullopt;
}

absl::StatusOr<GenerationDefaults> ParseObject(const nlohmann::json& object,
                                               const std::string& where) {
  ConfigFields fields(object, where);
  GenerationDefaults d;
  d.max_new_tokens = fields.Int("max_new_tokens", 1, kAnyCount);
  d.max_length = fields.Int("max_length", 1, kAnyCount);
  // Hugging Face's old default, which was written into files without anyone choosing it.
  if (d.max_length == 20) d.max_length = std::nullopt;
  d.min_new_tokens = fields.Int("min_new_tokens", 0, kAnyCount);
  d.min_length = fields.Int("min_length", 0, kAnyCount);
  d.num_beams = fields.Int("num_beams", 1, kAnyCount);
  d.num_return_sequences = fields.Int("num_return_sequences", 1, kAnyCount);
  d.length_penalty = fields.Number("length_penalty", -kAnyNumber, kAnyNumber);
  d.temperature = fields.Number("temperature", 0, kAnyNumber);
  d.top_p = fields.Number("top_p", 0, 1);
  d.typical_p = fields.Number("typical_p", 0, 1);
  d.min_p = fields.Number("min_p", 0, 1);
  d.repetition_penalty = fields.Number("repetition_penalty", 0, kAnyNumber);
  d.top_k = fields.Int("top_k", 0, kAnyCount);
  d.no_repeat_ngram_size = fields.Int("no_repeat_ngram_size", 0, kAnyCount);
  d.do_sample = fields.Bool("do_sample");
  d.early_stopping = ReadEarlyStopping(&fields);
  d.forced_bos_token_id = ReadId(&fields, "forced_bos_token_id");
  d.decoder_start_token_id = ReadId(&fields, "decoder_start_token_id");
  d.pad_token_id = ReadId(&fields, "pad_token_id");
  d.eos_token_ids = fields.TokenIds("eos_token_id", kAnyId, kMaxIds);
  d.forced_eos_token_ids = fields.TokenIds("forced_eos_token_id", kAnyId, kMaxIds);
  d.suppress_tokens = fields.TokenIds("suppress_tokens", kAnyId, kMaxIds);
  d.begin_suppress_tokens = fields.TokenIds("begin_suppress_tokens", kAnyId, kMaxIds);
  d.bad_words_ids = ReadBadWords(where, &fields);
  d.unsupported_fields = UnsupportedFields(where, fields);
  QT_RETURN_IF_ERROR(fields.status());
  return d;
}

// Directories older than generation_config.json keep its fields in config.json. The special ids
// there belong to the model and are read with its config.
absl::StatusOr<GenerationDefaults> DefaultsOfModelConfig(const std::string& directory) {
  constexpr char kWhere[] = "config.json";
  const auto text = ReadFile(directory + "/" + kWhere, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return GenerationDefaults();
  QT_RETURN_IF_ERROR(text.status());
  QT_ASSIGN_OR_RETURN(nlohmann::json json, ParseJson(*text, kWhere));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kWhere, ": expected an object"));
  }
  for (const char* id : {"eos_token_id", "pad_token_id", "decoder_start_token_id"}) json.erase(id);
  return ParseObject(json, kWhere);
}

}  // namespace

absl::Status CheckGenerationSupported(const GenerationDefaults& defaults) {
  if (defaults.unsupported_fields.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(absl::StrJoin(defaults.unsupported_fields, "; "),
                   ": not supported, but used by transformers' generate, "
                   "so outputs would differ; remove it "
                   "from the file or pass ",
                   kIgnoreGenerationFields));
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& directory) {
  const auto json = ReadFile(directory + "/generation_config.json", kMaxFileBytes);
  if (absl::IsNotFound(json.status())) return DefaultsOfModelConfig(directory);
  QT_RETURN_IF_ERROR(json.status());
  return ParseGenerationDefaults(*json, "generation_config.json");
}

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(const std::string& text,
                                                           const std::string& where) {
  QT_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, where));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": expected an object"));
  }
  return ParseObject(json, where);
}

}  // namespace quintet
