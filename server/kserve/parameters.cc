#include "server/kserve/parameters.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/json.h"
#include "quintet/v1/inference.pb.h"
#include "server/oneof.h"

namespace quintet {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

constexpr int kMaxJsonDepth = 8;
constexpr size_t kMaxJsonBytes = 256 << 10;  // of one parameter; parsed JSON is much larger
constexpr size_t kMaxNameBytes = 64;

// Names of vLLM's SamplingParams that mean the same as a field of DecodingOptions.
constexpr std::pair<absl::string_view, absl::string_view> kVllmNames[] = {
    {"n", "num_return_sequences"},
    {"max_tokens", "max_new_tokens"},
    {"min_tokens", "min_new_tokens"},
    {"include_stop_str_in_output", "include_stop"},
};
// Options that have an effect only with do_sample.
constexpr absl::string_view kSamplingNames[] = {"temperature", "top_k", "top_p",
                                                "typical_p",   "min_p", "seed"};

absl::Status Expected(const std::string& field, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": must be ", expected));
}

std::optional<uint64_t> AsUnsigned(const json& value, uint64_t most) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) {
    return std::nullopt;
  }
  const uint64_t number = value.get<uint64_t>();
  return number <= most ? std::optional<uint64_t>(number) : std::nullopt;
}

std::optional<uint32_t> AsUint32(const json& value) {
  const auto number = AsUnsigned(value, std::numeric_limits<uint32_t>::max());
  return number.has_value() ? std::optional<uint32_t>(static_cast<uint32_t>(*number))
                            : std::nullopt;
}

absl::StatusOr<std::vector<uint32_t>> ReadIds(const std::string& field, const json& value) {
  std::vector<uint32_t> ids;
  if (!value.is_array()) return Expected(field, "a list of token ids");
  for (const json& id : value) {
    const std::optional<uint32_t> number = AsUint32(id);
    if (!number.has_value()) return Expected(field, "a list of token ids, each 0 to 4294967295");
    ids.push_back(*number);
  }
  return ids;
}

// The names of an enum's values without their common prefix: "MEAN" for POOLING_MEAN. Value 0 is
// PREFIX_UNSPECIFIED.
std::string ShortName(const google::protobuf::EnumValueDescriptor& value) {
  const std::string unspecified(value.type()->FindValueByNumber(0)->name());
  const size_t prefix = unspecified.size() - std::string("UNSPECIFIED").size();
  return std::string(value.name()).substr(prefix);
}

absl::Status SetEnum(const std::string& field, const json& value, const FieldDescriptor* to,
                     Message* message) {
  const google::protobuf::EnumDescriptor* const type = to->enum_type();
  std::string wanted = value.is_string() ? value.get<std::string>() : "";
  // early_stopping of Hugging Face is a truth value or "never".
  if (value.is_boolean() && type == v1::EarlyStopping_descriptor()) {
    wanted = value.get<bool>() ? "FIRST" : "HEURISTIC";
  }
  absl::AsciiStrToUpper(&wanted);
  std::string names;
  for (int i = 1; i < type->value_count(); ++i) {
    const google::protobuf::EnumValueDescriptor& candidate = *type->value(i);
    const std::string name = ShortName(candidate);
    if (wanted == name || wanted == candidate.name()) {
      message->GetReflection()->SetEnum(message, to, &candidate);
      return absl::OkStatus();
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ", absl::AsciiStrToLower(name));
  }
  return Expected(field, absl::StrCat("one of ", names));
}

absl::Status SetList(const std::string& field, const json& value, const FieldDescriptor* to,
                     Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  if (to->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    QT_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ReadIds(field, value));
    for (const uint32_t id : ids) reflection.AddUInt32(message, to, id);
    return absl::OkStatus();
  }
  if (to->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    if (value.is_string()) {
      reflection.AddString(message, to, value.get<std::string>());
      return absl::OkStatus();
    }
    if (!value.is_array()) return Expected(field, "a string or a list of strings");
    for (const json& text : value) {
      if (!text.is_string()) return Expected(field, "a string or a list of strings");
      reflection.AddString(message, to, text.get<std::string>());
    }
    return absl::OkStatus();
  }
  if (!value.is_array()) return Expected(field, "a list of lists of token ids");
  for (const json& list : value) {
    QT_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ReadIds(field, list));
    auto* const to_ids = static_cast<v1::TokenIds*>(reflection.AddMessage(message, to));
    to_ids->mutable_ids()->Add(ids.begin(), ids.end());
  }
  return absl::OkStatus();
}

absl::Status SetInput(const std::string& field, const json& value, v1::Input* input) {
  if (value.is_string()) {
    input->set_text(value.get<std::string>());
    return absl::OkStatus();
  }
  QT_ASSIGN_OR_RETURN(const std::vector<uint32_t> ids, ReadIds(field, value));
  MutableTokenIds(input)->mutable_ids()->Add(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status SetNumber(const std::string& field, const json& value, const FieldDescriptor* to,
                       Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  switch (to->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!value.is_boolean()) return Expected(field, "true or false");
      reflection.SetBool(message, to, value.get<bool>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_FLOAT:
      if (!value.is_number()) return Expected(field, "a number");
      reflection.SetFloat(message, to, static_cast<float>(value.get<double>()));
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT64: {
      const auto number = AsUnsigned(value, std::numeric_limits<uint64_t>::max());
      if (!number.has_value()) return Expected(field, "a whole number from 0 to 2^64 - 1");
      reflection.SetUInt64(message, to, *number);
      return absl::OkStatus();
    }
    default: {
      const std::optional<uint32_t> number = AsUint32(value);
      if (!number.has_value()) return Expected(field, "a whole number from 0 to 4294967295");
      reflection.SetUInt32(message, to, *number);
      return absl::OkStatus();
    }
  }
}

// Whether a string given for this option is the value itself, not JSON text of the value.
bool IsPlainString(const FieldDescriptor& field, const std::string& value) {
  const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
                    field.message_type() == v1::Input::descriptor();
  const bool list = field.is_repeated() || field.message_type() != nullptr;
  return field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM ||
         (text && !(list && value.rfind('[', 0) == 0));
}

absl::StatusOr<JsonDocument> ParseText(const std::string& path, absl::string_view text) {
  if (text.size() > kMaxJsonBytes) {
    return Expected(path,
                    absl::StrCat("at most ", kMaxJsonBytes, " bytes of JSON, got ", text.size()));
  }
  absl::StatusOr<JsonDocument> parsed = ParseJson({text.data(), text.size()}, path, kMaxJsonDepth);
  if (!parsed.ok()) return Expected(path, "valid JSON, or a value that is not a string");
  return parsed;
}

absl::Status SetField(const std::string& path, const json& given, const FieldDescriptor* field,
                      Message* message) {
  JsonDocument parsed;
  const bool parse =
      given.is_string() && !IsPlainString(*field, given.get_ref<const std::string&>());
  if (parse) {
    QT_ASSIGN_OR_RETURN(parsed, ParseText(path, given.get_ref<const std::string&>()));
  }
  const json& value = parse ? *parsed : given;
  if (field->is_repeated()) return SetList(path, value, field, message);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    return SetEnum(path, value, field, message);
  }
  if (field->message_type() == v1::Input::descriptor()) {
    return SetInput(
        path, value,
        static_cast<v1::Input*>(message->GetReflection()->MutableMessage(message, field)));
  }
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) {
    return SetNumber(path, value, field, message);
  }
  if (!value.is_string()) return Expected(path, "a string");
  message->GetReflection()->SetString(message, field, value.get<std::string>());
  return absl::OkStatus();
}

// Whether an error message may quote the name `name`, which comes from a client.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
         });
}

bool Contains(const std::vector<absl::string_view>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

json JsonOf(const kserve::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case kserve::InferParameter::kBoolParam:
      return parameter.bool_param();
    case kserve::InferParameter::kInt64Param:
      return parameter.int64_param();
    case kserve::InferParameter::kUint64Param:
      return parameter.uint64_param();
    case kserve::InferParameter::kDoubleParam:
      return parameter.double_param();
    case kserve::InferParameter::kStringParam:
      return parameter.string_param();
    default:
      return nullptr;
  }
}

absl::StatusOr<bool> ReadFlag(const std::string& name, const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string() && value.get_ref<const std::string&>() == "true") return true;
  if (value.is_string() && value.get_ref<const std::string&>() == "false") return false;
  return Expected("parameters." + name, "true or false");
}

absl::StatusOr<v1::Priority> ReadPriority(const json& value) {
  constexpr v1::Priority kLevels[] = {v1::PRIORITY_UNSPECIFIED, v1::PRIORITY_HIGH,
                                      v1::PRIORITY_NORMAL, v1::PRIORITY_LOW};
  if (const auto level = AsUnsigned(value, std::size(kLevels) - 1); level.has_value()) {
    return kLevels[*level];
  }
  v1::CallOptions call;
  const FieldDescriptor* const field = call.GetDescriptor()->FindFieldByName("priority");
  if (!value.is_string() || !SetEnum("", value, field, &call).ok()) {
    return Expected("parameters.priority", "0 (default), 1 or high, 2 or normal, 3 or low");
  }
  return call.priority();
}

std::string ParameterReader::Names() const {
  std::string names;
  for (const Message* message : messages_) {
    const google::protobuf::Descriptor& type = *message->GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      if (Contains(hidden_, type.field(i)->name())) continue;
      absl::StrAppend(&names, names.empty() ? "" : ", ", type.field(i)->name());
    }
  }
  return names;
}

absl::Status ParameterReader::Set(absl::string_view name, const json& value) {
  if (!IsPlainName(name)) {
    return absl::InvalidArgumentError(absl::StrCat("parameters: a name of ", name.size(),
                                                   " bytes is not known; known: ", Names()));
  }
  const std::string path = absl::StrCat("parameters.", name);
  for (Message* message : messages_) {
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(std::string(name));
    if (field == nullptr || Contains(hidden_, name)) continue;
    if (std::find(seen_.begin(), seen_.end(), name) != seen_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is given twice"));
    }
    seen_.emplace_back(name);
    return SetField(path, value, field, message);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": is not known for this operation; known: ", Names()));
}

absl::Status ParameterReader::SetSampling(absl::string_view text) {
  const absl::StatusOr<JsonDocument> document = ParseText("sampling_parameters", text);
  if (!document.ok() || !(*document)->is_object()) {
    return Expected("sampling_parameters",
                    absl::StrCat("one JSON object of at most ", kMaxJsonBytes, " bytes"));
  }
  const json* const object = &**document;
  const auto temperature = object->find("temperature");
  const bool greedy = temperature != object->end() && *temperature == 0;
  bool samples = false;
  for (const auto& [name, value] : object->items()) {
    if (greedy && name == "seed") continue;
    absl::string_view known = name;
    for (const auto& [vllm, ours] : kVllmNames) known = name == vllm ? ours : known;
    samples |= std::find(std::begin(kSamplingNames), std::end(kSamplingNames), name) !=
               std::end(kSamplingNames);
    QT_RETURN_IF_ERROR(Set(known, value));
  }
  if (!samples || greedy || object->find("do_sample") != object->end()) return absl::OkStatus();
  return Set("do_sample", true);
}

}  // namespace quintet
