#include "models/adapters/module_key.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

// Whether a regular expression has no operators except '.', which matches any character.
bool IsPlain(std::string_view key) {
  return std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

bool EndsWithModule(std::string_view name, std::string_view suffix) {
  if (name.size() < suffix.size() || suffix.empty()) return false;
  const size_t begin = name.size() - suffix.size();
  return name.substr(begin) == suffix && (begin == 0 || name[begin - 1] == '.');
}

absl::StatusOr<ModuleRegex> ModuleRegex::Compile(const std::string& regex,
                                                 const std::string& field) {
  if (regex.empty() || regex.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(field,
                                                   ": expected a regular expression of 1 to ",
                                                   kMaxBytes, " bytes, got ", regex.size()));
  }
  // Also compile `regex` alone: "a)(?:b" is invalid, but would be valid inside the group (?: ).
  absl::StatusOr<Pattern> pattern = Pattern::Compile(regex, field);
  if (pattern.ok()) pattern = Pattern::Compile(absl::StrCat("\\A(?:", regex, ")\\z"), field);
  if (pattern.ok()) return ModuleRegex(*std::move(pattern));
  return absl::Status(
      pattern.status().code(),
      absl::StrCat(pattern.status().message(), "; list the names of the modules instead"));
}

bool ModuleRegex::Matches(std::string_view name) const {
  bool matches = false;
  pattern_.ForEachMatch(
      name, [&](size_t begin, size_t end) { matches |= begin == 0 && end == name.size(); });
  return matches;
}

absl::StatusOr<ModuleKey> ModuleKey::Compile(const std::string& key, const std::string& field) {
  ModuleKey result;
  result.text_ = key;
  if (key.empty() || key.size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected keys of 1 to ", kMaxBytes, " bytes, got ", key.size()));
  }
  if (IsPlain(key)) return result;
  QT_ASSIGN_OR_RETURN(result.regex_,
                      ModuleRegex::Compile(absl::StrCat("(?:.*\\.)?(?:", key, ")"),
                                           absl::StrCat(field, ": ", Printable(key))));
  return result;
}

bool ModuleKey::Matches(std::string_view name) const {
  if (regex_.has_value()) return regex_->Matches(name);
  if (name.size() < text_.size()) return false;
  const size_t begin = name.size() - text_.size();
  if (begin > 0 && name[begin - 1] != '.') return false;
  return std::equal(text_.begin(), text_.end(), name.begin() + static_cast<std::ptrdiff_t>(begin),
                    [](char key, char c) { return key == c || key == '.'; });
}

}  // namespace quintet
