#include "tools/decoding_json.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tools/line_format.h"

namespace quintet {
namespace {

using nlohmann::json;

absl::Status Expected(const std::string& field, const char* expected, const json& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", got ",
                   got.is_number() || got.is_boolean() ? got.dump() : got.type_name()));
}

absl::Status Read(const std::string& field, const json& value, std::optional<bool>* to) {
  if (!value.is_boolean()) return Expected(field, "true or false", value);
  *to = value.get<bool>();
  return absl::OkStatus();
}

absl::Status Read(const std::string& field, const json& value, std::optional<double>* to) {
  // Round to float, the type of the proto's fields: the same number in a request then has the same
  // effect through JSON lines, flags and gRPC.
  if (!value.is_number()) return Expected(field, "a number", value);
  *to = static_cast<double>(static_cast<float>(value.get<double>()));
  return absl::OkStatus();
}

absl::Status Read(const std::string& field, const json& value, std::optional<int64_t>* to) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
    return Expected(field, "a whole number from 0 to 4294967295", value);
  }
  *to = static_cast<int64_t>(value.get<uint64_t>());
  return absl::OkStatus();
}

absl::Status Read(const std::string& field, const json& value, std::optional<uint64_t>* to) {
  if (!value.is_number_unsigned()) return Expected(field, "a whole number from 0 on", value);
  *to = value.get<uint64_t>();
  return absl::OkStatus();
}

absl::Status Read(const std::string& field, const json& value, std::optional<EarlyStopping>* to) {
  if (value == true || value == "first") {
    *to = EarlyStopping::kFirst;
  } else if (value == false || value == "heuristic") {
    *to = EarlyStopping::kHeuristic;
  } else if (value == "never") {
    *to = EarlyStopping::kNever;
  } else {
    return Expected(field, "true, false or \"never\"", value);
  }
  return absl::OkStatus();
}

absl::Status Read(const std::string& field, const json& value, std::vector<uint32_t>* to) {
  QT_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsFromJson(value, field));
  to->assign(ids.begin(), ids.end());
  return absl::OkStatus();
}

absl::Status Read(const std::string& field, const json& value,
                  std::vector<std::vector<uint32_t>>* to) {
  if (!value.is_array()) return Expected(field, "an array of arrays of token ids", value);
  to->clear();
  for (const json& list : value) {
    to->emplace_back();
    QT_RETURN_IF_ERROR(Read(absl::StrCat(field, "[", to->size() - 1, "]"), list, &to->back()));
  }
  return absl::OkStatus();
}

absl::Status Read(const std::string& field, const json& value, std::vector<std::string>* to) {
  const json list = value.is_string() ? json::array({value}) : value;
  if (!list.is_array()) return Expected(field, "a string or an array of strings", value);
  to->clear();
  for (const json& text : list) {
    if (!text.is_string()) return Expected(field, "a string or an array of strings", text);
    to->push_back(text.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadPrefix(const json& value, const Tokenizer* tokenizer, std::vector<int32_t>* to) {
  if (!value.is_string()) {
    QT_ASSIGN_OR_RETURN(*to, IdsFromJson(value, "decoder_prefix"));
    return absl::OkStatus();
  }
  if (tokenizer == nullptr) {
    return absl::InvalidArgumentError("decoder_prefix: the model has no tokenizer; pass token ids");
  }
  QT_ASSIGN_OR_RETURN(*to, tokenizer->Encode(value.get_ref<const std::string&>(),
                                             /*add_special_tokens=*/false));
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& DecodingJsonNames() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>{"decoder_prefix"};
    DecodingRequest request;
    VisitRequestFields(&request, [list](const char* name, auto*) { list->push_back(name); });
    return list;
  }();
  return *names;
}

absl::Status ReadDecodingJson(const nlohmann::json& line, const Tokenizer* tokenizer,
                              DecodingRequest* request) {
  absl::Status status;
  VisitRequestFields(request, [&](const char* name, auto* field) {
    const auto found = line.find(name);
    if (found != line.end()) status.Update(Read(name, *found, field));
  });
  QT_RETURN_IF_ERROR(status);
  const auto prefix = line.find("decoder_prefix");
  return prefix == line.end() ? absl::OkStatus()
                              : ReadPrefix(*prefix, tokenizer, &request->decoder_prefix);
}

}  // namespace quintet
