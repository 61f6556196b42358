#include "server/api_route.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "google/protobuf/descriptor.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

using google::protobuf::FieldDescriptor;

const char* TypeOf(const FieldDescriptor& field) {
  if (field.name() == "decoder_prefix" || field.name() == "stop") return "any";
  if (field.is_repeated()) return "array";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      return "integer";
    case FieldDescriptor::CPPTYPE_FLOAT:
      return "number";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "boolean";
    case FieldDescriptor::CPPTYPE_ENUM:
      return "any";
    default:
      return "string";
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<ModelHost>> ApiRequest::Find(const std::string& model) const {
  std::string adapter;  // set by the call itself
  QT_ASSIGN_OR_RETURN(const std::shared_ptr<ServedModel> found,
                      context.models->FindWithAdapter(model, &adapter));
  if (binding.model == found && binding.host != nullptr) return binding.host;
  return absl::UnavailableError("the model is not loaded");
}

int64_t Translation::MessageBytes() const {
  int64_t bytes = 0;
  for (const RpcOfRequest& rpc : rpcs_) bytes += static_cast<int64_t>(rpc.message.Length());
  return bytes;
}

absl::Status CheckRepeatedText(const CallContext& context, absl::string_view field, size_t bytes) {
  const int64_t limit = 2 * context.max_message_bytes;
  if (static_cast<int64_t>(bytes) <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": is part of every text to score, which are together at most ", limit,
                   " bytes, got ", bytes, "; send fewer texts in one request"));
}

std::vector<ApiField> CallFields() {
  return {
      {"model", "string", "Name of a served model. Default: the only one."},
      {"adapter", "string", "Name of a LoRA adapter of the model; or `model` is MODEL:ADAPTER."},
      {"request_id", "string", "At most 64 of [A-Za-z0-9._-]. Default: header X-Request-Id."},
      {"priority", "string", "low, normal or high."},
      {"truncate", "boolean", "Cut inputs that are too long. Default false: an error."},
      {"add_special_tokens", "boolean", "Default true."}};
}

std::vector<ApiField> EncodeFields() {
  return {{"pooling", "string",
           "none, mean, first, last, max, mean_sqrt_len or weighted_mean. Default: the model's."},
          {"normalize", "boolean", "Scale each vector to unit length."},
          {"prompt_name", "string", "Prompt of the model that is put before every text."},
          {"prompt", "string", "Text that is put before every text instead."},
          {"pad_to", "integer", "Tokens to which inputs are padded or cut; needs pooling none."},
          {"pad_mode", "string", "attend (padding tokens) or zero (rows of zeros)."}};
}

std::vector<ApiField> DecodingFields() {
  std::vector<ApiField> fields;
  const auto* const type = v1::DecodingOptions::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    fields.push_back({std::string(type->field(i)->name()), TypeOf(*type->field(i)),
                      "DecodingOptions of quintet.v1."});
  }
  return fields;
}

std::vector<ApiField> operator+(std::vector<ApiField> a, const std::vector<ApiField>& b) {
  for (const ApiField& field : b) {
    const auto same = [&](const ApiField& other) { return other.name == field.name; };
    if (std::none_of(a.begin(), a.end(), same)) a.push_back(field);
  }
  return a;
}

absl::Status CheckKnownFields(const ApiRoute& route, const nlohmann::json& body) {
  if (!body.is_object()) return absl::OkStatus();  // JsonFields reports it
  for (const auto& [name, value] : body.items()) {
    const auto is_this = [&name = name](const ApiField& field) { return field.name == name; };
    if (value.is_null() || std::any_of(route.fields.begin(), route.fields.end(), is_this)) continue;
    std::string shown = name.substr(0, 64);
    std::replace_if(
        shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    return absl::InvalidArgumentError(
        absl::StrCat(shown, ": unknown field of ", route.path, "; /openapi.json lists the fields"));
  }
  return absl::OkStatus();
}

void AppendFloat(float value, std::string* to) {
  if (!std::isfinite(value)) {
    to->append("null");
    return;
  }
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  to->append(text, end.ptr);
}

std::string Event(const JsonValue& value) {
  return absl::StrCat("data: ", JsonText(value), "\n\n");
}

void AppendRow(absl::string_view values, std::string* to) {
  to->push_back('[');
  for (size_t at = 0; at + sizeof(float) <= values.size(); at += sizeof(float)) {
    if (at > 0) to->push_back(',');
    float value = 0;
    std::memcpy(&value, values.data() + at, sizeof(value));
    AppendFloat(value, to);
  }
  to->push_back(']');
}

const std::vector<ApiRoute>& ApiRoutes() {
  static const auto* const routes = [] {
    auto* const all = new std::vector<ApiRoute>();
    for (std::vector<ApiRoute>& some : std::vector<std::vector<ApiRoute>>{
             OpenAiRoutes(), TeiRoutes(), TgiRoutes(), VllmRoutes()}) {
      std::move(some.begin(), some.end(), std::back_inserter(*all));
    }
    return all;
  }();
  return *routes;
}

}  // namespace quintet
