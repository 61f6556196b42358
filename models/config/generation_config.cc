#include "models/config/generation_config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/config/config_fields.h"

namespace quintet {
namespace {

constexpr int64_t kMaxGenerationConfigBytes = 4 << 20;
// Upper bound (exclusive) of the token ids in the JSON file. Whether an id is within the model's
// vocabulary is checked later, where the id is used.
constexpr int64_t kAnyId = int64_t{1} << 31;
constexpr int64_t kAnyCount = int64_t{1} << 31;
constexpr double kAnyNumber = 1e9;
constexpr size_t kMaxIds = 100000;
constexpr size_t kMaxShownValue = 80;  // characters

// Reads one field of the JSON file into a member of DecodingFields. The member's C++ type selects
// the overload of Read, which checks that the field has the corresponding JSON type.
class FieldReader {
 public:
  FieldReader(std::string where, ConfigFields* fields)
      : where_(std::move(where)), fields_(fields) {}

  template <typename T>
  void operator()(const char* name, T* to, const FieldInFile& in_file) const {
    Read(in_file.name != nullptr ? in_file.name : name, in_file, to);
  }

 private:
  void Read(const char* name, const FieldInFile& f, std::optional<int64_t>* to) const {
    *to = fields_->Int(name, static_cast<int64_t>(f.low),
                       static_cast<int64_t>(f.high.value_or(kAnyCount)));
  }
  void Read(const char* name, const FieldInFile& f, std::optional<double>* to) const {
    *to = fields_->Number(name, f.low, f.high.value_or(kAnyNumber));
  }
  void Read(const char* name, const FieldInFile&, std::optional<bool>* to) const {
    *to = fields_->Bool(name);
  }
  void Read(const char* name, const FieldInFile&, std::optional<EarlyStopping>* to) const {
    const nlohmann::json* value = fields_->Find(name);
    if (value == nullptr) return;
    if (value->is_boolean()) {
      *to = value->get<bool>() ? EarlyStopping::kFirst : EarlyStopping::kHeuristic;
    } else if (value->is_string() && value->get_ref<const std::string&>() == "never") {
      *to = EarlyStopping::kNever;
    } else {
      fields_->Invalid(name, "expected true, false or \"never\"");
    }
  }
  void Read(const char* name, const FieldInFile&, std::vector<uint32_t>* to) const {
    *to = Ids(name, fields_);
  }
  void Read(const char* name, const FieldInFile&, std::vector<std::vector<uint32_t>>* to) const {
    const nlohmann::json* value = fields_->Find(name);
    if (value == nullptr) return;
    if (!value->is_array() || value->size() > kMaxIds) {
      fields_->Invalid(name, absl::StrCat("expected a list of at most ", kMaxIds, " lists"));
      return;
    }
    for (const nlohmann::json& list : *value) {
      if (!list.is_array() || list.empty()) {
        fields_->Invalid(name, "expected lists of at least one id");
        return;
      }
      const nlohmann::json as_field = {{name, list}};
      ConfigFields one(as_field, where_);
      to->push_back(Ids(name, &one));
      fields_->Fail(one.status());
    }
  }
  static std::vector<uint32_t> Ids(const char* name, ConfigFields* fields) {
    const std::vector<int32_t> ids = fields->TokenIds(name, kAnyId, kMaxIds);
    return {ids.begin(), ids.end()};
  }

  std::string where_;
  ConfigFields* fields_;
};

std::vector<std::string> FindUnsupported(const std::string& where, const ConfigFields& fields) {
  std::vector<std::string> found;
  for (const UnsupportedField& one : kUnsupportedFields) {
    const nlohmann::json* value = fields.Find(one.name);
    if (value == nullptr || *value == nlohmann::json::parse(one.neutral)) continue;
    // The value is from an untrusted file: escape it to ASCII, which is safe to print.
    std::string text = value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (text.size() > kMaxShownValue) text = text.substr(0, kMaxShownValue) + "...";
    found.push_back(absl::StrCat(where, ": ", one.name, " is ", text));
  }
  return found;
}

absl::StatusOr<GenerationDefaults> ParseObject(const nlohmann::json& object,
                                               const std::string& where) {
  ConfigFields fields(object, where);
  GenerationDefaults d;
  VisitDecodingFields(&d, FieldReader(where, &fields));
  d.max_length = fields.Int("max_length", 1, kAnyCount);
  // A max_length of 20 is ignored: it is Hugging Face's old default, which was written into files
  // without anyone choosing it.
  if (d.max_length == 20) d.max_length = std::nullopt;
  d.min_length = fields.Int("min_length", 0, kAnyCount);
  d.unsupported_fields = FindUnsupported(where, fields);
  QT_RETURN_IF_ERROR(fields.status());
  return d;
}

// Reads the decoding defaults from config.json, where directories without generation_config.json
// keep them. The special token ids of config.json are read with the model's config instead.
absl::StatusOr<GenerationDefaults> DefaultsOfModelConfig(const std::string& directory) {
  constexpr char kWhere[] = "config.json";
  const auto text = ReadFile(directory + "/" + kWhere, kMaxGenerationConfigBytes);
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
  if (ModelFormatOf(directory) != ModelFormat::kDirectory) return GenerationDefaults();
  const auto json = ReadFile(directory + "/generation_config.json", kMaxGenerationConfigBytes);
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
