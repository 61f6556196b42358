#include "server/field_names.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "server/errors.h"

namespace quintet {

absl::string_view FieldOf(absl::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos || !IsFieldPath(message.substr(0, colon))) return "";
  return message.substr(0, colon);
}

std::string RenamedField(absl::string_view message, const FieldRenames& names) {
  const absl::string_view path = FieldOf(message);
  for (const auto& [from, to] : names) {
    absl::string_view rest = path;
    if (from.empty() || !absl::ConsumePrefix(&rest, from)) continue;
    const bool whole = rest.empty() || rest.front() == '[' || rest.front() == '.';
    if (!whole && from.back() != '[' && from.back() != '.') continue;
    const std::string shorter =
        absl::StrReplaceAll(rest, {{".token_ids.ids", ""}, {".token_ids", ""}, {".text", ""}});
    return absl::StrCat(to, shorter, message.substr(path.size()));
  }
  return std::string(message);
}

absl::Status RenamedField(const absl::Status& status, const FieldRenames& names) {
  absl::Status renamed(status.code(), RenamedField(status.message(), names));
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    renamed.SetPayload(type, payload);
  });
  return renamed;
}

}  // namespace quintet
