#include "server/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/reflection.h"
#include "kernels/base/status_macros.h"
#include "server/oneof.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

using google::protobuf::FieldDescriptor;
using nlohmann::json;

constexpr char kIds[] = "a whole number from 0 to 4294967295";
constexpr char kInput[] = "a string or an array of token ids";

bool IsUint32(const json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() <= std::numeric_limits<uint32_t>::max();
}

// Rounds to float. Values outside float's range become infinity, which every range check rejects.
float ToFloat(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (std::abs(value) <= kMost) return static_cast<float>(value);
  return static_cast<float>(std::copysign(std::numeric_limits<double>::infinity(), value));
}

absl::Status ReadIds(const std::string& name, const json& value, v1::TokenIds* to) {
  if (!value.is_array()) return ExpectedJson(name, "an array of token ids", value);
  to->mutable_ids()->Reserve(static_cast<int>(value.size()));
  for (size_t i = 0; i < value.size(); ++i) {
    if (!IsUint32(value[i])) return ExpectedJson(absl::StrCat(name, "[", i, "]"), kIds, value[i]);
    to->add_ids(value[i].get<uint32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadEnum(const std::string& name, const json& value, const FieldDescriptor* field,
                      const std::string& prefix, google::protobuf::Message* to) {
  // early_stopping may also be true or false, as in Hugging Face's transformers.
  std::string text = value.is_string() ? value.get<std::string>() : "";
  if (value.is_boolean() && field->name() == "early_stopping") {
    text = value.get<bool>() ? "first" : "heuristic";
  }
  std::string expected;
  for (int i = 1; i < field->enum_type()->value_count(); ++i) {  // 0 is UNSPECIFIED
    const auto* const known = field->enum_type()->value(i);
    const std::string spelled =
        absl::AsciiStrToLower(std::string(known->name()).substr(prefix.size()));
    if (spelled == text) {
      to->GetReflection()->SetEnum(to, field, known);
      return absl::OkStatus();
    }
    absl::StrAppend(&expected, i == 1 ? "one of " : ", ", spelled);
  }
  return ExpectedJson(name, expected, value);
}

// Appends an element of a repeated field of DecodingOptions.
absl::Status AddElement(const std::string& name, const json& value, const FieldDescriptor* field,
                        v1::DecodingOptions* to) {
  const auto* const reflection = to->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      if (!IsUint32(value)) return ExpectedJson(name, kIds, value);
      reflection->AddUInt32(to, field, value.get<uint32_t>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_STRING:
      if (!value.is_string()) return ExpectedJson(name, "a string", value);
      reflection->AddString(to, field, value.get<std::string>());
      return absl::OkStatus();
    default:
      return ReadIds(name, value, to->add_bad_words_ids());
  }
}

absl::Status SetSingle(const std::string& name, const json& value, const FieldDescriptor* field,
                       v1::DecodingOptions* to) {
  const auto* const reflection = to->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      if (!IsUint32(value)) return ExpectedJson(name, kIds, value);
      reflection->SetUInt32(to, field, value.get<uint32_t>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT64:
      if (!value.is_number_unsigned()) return ExpectedJson(name, "a whole number from 0 on", value);
      reflection->SetUInt64(to, field, value.get<uint64_t>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_FLOAT:
      if (!value.is_number()) return ExpectedJson(name, "a number", value);
      reflection->SetFloat(to, field, ToFloat(value.get<double>()));
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_BOOL:
      if (!value.is_boolean()) return ExpectedJson(name, "true or false", value);
      reflection->SetBool(to, field, value.get<bool>());
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM:
      return ReadEnum(name, value, field, "EARLY_STOPPING_", to);
    default:
      return ReadInput(name, value, to->mutable_decoder_prefix());
  }
}

absl::Status SetField(const std::string& name, const json& value, const FieldDescriptor* field,
                      v1::DecodingOptions* to) {
  if (!field->is_repeated()) return SetSingle(name, value, field, to);
  // One stop string need not be in an array.
  if (value.is_string()) return AddElement(name, value, field, to);
  if (!value.is_array()) return ExpectedJson(name, "an array", value);
  for (size_t i = 0; i < value.size(); ++i) {
    QT_RETURN_IF_ERROR(AddElement(absl::StrCat(name, "[", i, "]"), value[i], field, to));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpectedJson(absl::string_view name, absl::string_view expected, const json& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected ", expected, ", got ",
                   got.is_number() || got.is_boolean() ? got.dump() : got.type_name()));
}

absl::Status ReadInput(const std::string& name, const json& value, v1::Input* to) {
  if (value.is_string()) {
    to->set_text(value.get<std::string>());
    return absl::OkStatus();
  }
  if (!value.is_array()) return ExpectedJson(name, kInput, value);
  return ReadIds(name, value, MutableTokenIds(to));
}

JsonFields::JsonFields(const json& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {
  if (object.is_object()) return;
  const std::string name = prefix_.empty() ? "body" : prefix_.substr(0, prefix_.size() - 1);
  status_ = ExpectedJson(name, "a JSON object", object);
}

const json* JsonFields::Find(const std::string& name) {
  read_.insert(name);
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::Peek(const std::string& name) const {
  if (!object_.is_object()) return false;
  const auto found = object_.find(name);
  return found != object_.end() && !found->is_null();
}

void JsonFields::Fail(const std::string& name, absl::string_view text) {
  Fail(absl::InvalidArgumentError(absl::StrCat(prefix_, name, ": ", text)));
}

void JsonFields::Read(const std::string& name, std::string* to) {
  const json* const value = Find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return Fail(ExpectedJson(FullName(name), "a string", *value));
  *to = value->get<std::string>();
}

void JsonFields::Read(const std::string& name, bool* to) {
  const json* const value = Find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return Fail(ExpectedJson(FullName(name), "true or false", *value));
  *to = value->get<bool>();
}

void JsonFields::Read(const std::string& name, std::optional<double>* to) {
  const json* const value = Find(name);
  if (value == nullptr) return;
  if (!value->is_number()) return Fail(ExpectedJson(FullName(name), "a number", *value));
  *to = value->get<double>();
}

template <typename Integer>
void JsonFields::ReadInteger(const std::string& name, std::optional<Integer>* to) {
  const json* const value = Find(name);
  if (value == nullptr) return;
  constexpr Integer kMost = std::numeric_limits<Integer>::max();
  if (!value->is_number_unsigned() || value->get<uint64_t>() > kMost) {
    return Fail(
        ExpectedJson(FullName(name), absl::StrCat("a whole number from 0 to ", kMost), *value));
  }
  *to = value->get<Integer>();
}

void JsonFields::Read(const std::string& name, std::optional<uint32_t>* to) {
  ReadInteger(name, to);
}

void JsonFields::Read(const std::string& name, std::optional<uint64_t>* to) {
  ReadInteger(name, to);
}

void JsonFields::ReadInputs(const std::string& name, std::vector<v1::Input>* to, bool* list,
                            bool wrapped_texts) {
  const json* const value = Find(name);
  if (value == nullptr) {
    return Fail(name, "missing: expected a string, or an array of strings or of token ids");
  }
  *list = value->is_array() && (value->empty() || !value->front().is_number());
  if (!*list) return Fail(ReadInput(FullName(name), *value, &to->emplace_back()));
  if (value->empty() || value->size() > static_cast<size_t>(kMaxInputs)) {
    return Fail(name, absl::StrCat("must hold 1 to ", kMaxInputs, ", got ", value->size()));
  }
  for (size_t i = 0; i < value->size() && status_.ok(); ++i) {
    const json* one = &(*value)[i];
    if (wrapped_texts && one->is_array() && one->size() == 1 && one->front().is_string()) {
      one = &one->front();
    }
    Fail(ReadInput(absl::StrCat(prefix_, name, "[", i, "]"), *one, &to->emplace_back()));
  }
}

void JsonFields::ReadTexts(const std::string& name, size_t limit, std::vector<std::string>* to) {
  const json* const value = Find(name);
  if (value == nullptr) return Fail(name, "missing: expected an array of strings");
  if (!value->is_array()) {
    return Fail(ExpectedJson(FullName(name), "an array of strings", *value));
  }
  if (value->empty() || value->size() > limit) {
    return Fail(name, absl::StrCat("must hold 1 to ", limit, ", got ", value->size()));
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const json& text = (*value)[i];
    if (!text.is_string()) {
      return Fail(ExpectedJson(absl::StrCat(prefix_, name, "[", i, "]"), "a string", text));
    }
    to->push_back(text.get<std::string>());
  }
}

void JsonFields::ReadDecoding(v1::DecodingOptions* to) {
  const auto* const type = v1::DecodingOptions::descriptor();
  for (int i = 0; i < type->field_count() && status_.ok(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    const std::string name(field->name());
    if (WasRead(name)) continue;
    const json* const value = Find(name);
    if (value != nullptr) Fail(SetField(FullName(name), *value, field, to));
  }
}

void JsonFields::ReadCall(v1::CallOptions* to) {
  Read("model", to->mutable_model());
  if (Find("adapter") != nullptr) Read("adapter", to->mutable_adapter());
  std::string request_id;
  Read("request_id", &request_id);
  if (!request_id.empty()) to->set_request_id(request_id);
  bool truncate = false;
  Read("truncate", &truncate);
  to->set_truncate(truncate);
  if (const json* const special = Find("add_special_tokens"); special != nullptr) {
    bool add = true;
    Read("add_special_tokens", &add);
    to->set_add_special_tokens(add);
  }
  if (const json* const priority = Find("priority"); priority != nullptr) {
    Fail(ReadEnum(FullName("priority"), *priority,
                  v1::CallOptions::descriptor()->FindFieldByName("priority"), "PRIORITY_", to));
  }
}

void JsonFields::ReadEncodeOptions(v1::EncodeOptions* to) {
  if (const json* const pooling = Find("pooling"); pooling != nullptr) {
    Fail(ReadEnum(FullName("pooling"), *pooling,
                  v1::EncodeOptions::descriptor()->FindFieldByName("pooling"), "POOLING_", to));
  }
  bool normalize = to->normalize();
  Read("normalize", &normalize);
  to->set_normalize(normalize);
  if (Find("prompt_name") != nullptr) Read("prompt_name", to->mutable_prompt_name());
  if (Find("prompt") != nullptr) Read("prompt", to->mutable_prompt());
  std::optional<uint32_t> pad_to;
  Read("pad_to", &pad_to);
  to->set_pad_to(pad_to.value_or(0));
  if (const json* const mode = Find("pad_mode"); mode != nullptr) {
    Fail(ReadEnum(FullName("pad_mode"), *mode,
                  v1::EncodeOptions::descriptor()->FindFieldByName("pad_mode"), "PAD_MODE_", to));
  }
}

void JsonFields::Refuse(const std::string& name, const std::vector<absl::string_view>& harmless,
                        absl::string_view reason) {
  const json* const value = Find(name);
  if (value == nullptr) return;
  const std::string text = value->dump();
  for (const absl::string_view one : harmless) {
    if (text == one) return;
  }
  Fail(name, reason);
}

}  // namespace quintet
