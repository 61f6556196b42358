#include "tools/model_sections.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

bool IsBare(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

void SkipBlanks(absl::string_view* text) { *text = absl::StripLeadingAsciiWhitespace(*text); }

// Returns the character of \uXXXX, whose digits are the first four of *text, as UTF-8.
absl::StatusOr<std::string> TakeUnicodeEscape(absl::string_view* text) {
  uint32_t code = 0;
  const absl::string_view digits = text->substr(0, 4);
  if (digits.size() < 4 || !absl::SimpleHexAtoi(digits, &code) ||
      (code >= 0xD800 && code < 0xE000)) {
    return absl::InvalidArgumentError(absl::StrCat("\\u", digits, " is not a character"));
  }
  text->remove_prefix(4);
  std::string character;
  AppendUtf8(code, &character);
  return character;
}

// Parses a TOML string at the beginning of *text and removes it from there. The string is in double
// quotes and may contain escapes, or in single quotes.
absl::StatusOr<std::string> TakeQuoted(absl::string_view* text) {
  const char quote = text->front();
  text->remove_prefix(1);
  std::string value;
  while (!text->empty()) {
    const char c = text->front();
    text->remove_prefix(1);
    if (c == quote) return value;
    if (c != '\\' || quote == '\'') {
      value.push_back(c);
      continue;
    }
    const char escaped = text->empty() ? '\0' : text->front();
    if (!text->empty()) text->remove_prefix(1);
    constexpr absl::string_view kEscapes = "\"\\ntrbf", kCharacters = "\"\\\n\t\r\b\f";
    if (escaped == 'u') {
      QT_ASSIGN_OR_RETURN(const std::string character, TakeUnicodeEscape(text));
      value += character;
    } else if (const size_t at = kEscapes.find(escaped); at != absl::string_view::npos) {
      value.push_back(kCharacters[at]);
    } else {
      return absl::InvalidArgumentError(
          "expected one of \\\" \\\\ \\n \\t \\r \\b \\f \\uXXXX after a backslash; in single "
          "quotes a backslash is itself");
    }
  }
  return absl::InvalidArgumentError("the string does not end on its line");
}

// Parses one TOML key at the beginning of *text, bare or in quotes, and removes it from there.
absl::StatusOr<std::string> TakeKey(absl::string_view* text) {
  SkipBlanks(text);
  if (!text->empty() && (text->front() == '"' || text->front() == '\'')) return TakeQuoted(text);
  const auto end = std::find_if_not(text->begin(), text->end(), IsBare);
  const std::string key(text->begin(), end);
  text->remove_prefix(key.size());
  if (key.empty()) {
    return absl::InvalidArgumentError(
        "expected a key of letters, digits, - and _, or a key in quotes");
  }
  return key;
}

absl::Status CheckLineEnd(absl::string_view text) {
  SkipBlanks(&text);
  if (text.empty() || text.front() == '#') return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unexpected text after the value: ", text));
}

// Parses a value at the beginning of *text (a string, a number, true or false) and removes it from
// there.
absl::StatusOr<std::string> TakeValue(absl::string_view* text) {
  SkipBlanks(text);
  if (absl::StartsWith(*text, "\"\"\"") || absl::StartsWith(*text, "'''")) {
    return absl::InvalidArgumentError("expected a string on one line, got one in triple quotes");
  }
  if (!text->empty() && (text->front() == '"' || text->front() == '\'')) return TakeQuoted(text);
  const auto end = std::find_if_not(text->begin(), text->end(),
                                    [](char c) { return IsBare(c) || c == '+' || c == '.'; });
  const std::string value(text->begin(), end);
  double number = 0;
  const bool plain = value == "true" || value == "false" || absl::SimpleAtod(value, &number);
  if (!plain) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a string in quotes, a number, true or false, got ", text->substr(0, 40)));
  }
  text->remove_prefix(value.size());
  return value;
}

using SettingTable = std::vector<ModelSetting> ModelSection::*;

// The member of ModelSection that a section [models.NAME.TABLE] fills; null if TABLE is unknown.
SettingTable TableNamed(absl::string_view table) {
  return table == "prompts"    ? &ModelSection::prompts
         : table == "adapters" ? &ModelSection::adapters
                               : nullptr;
}

// Parses the header of a section. Returns the parts of its name: "models", "g2p" and "prompts" for
// [models.g2p.prompts].
absl::StatusOr<std::vector<std::string>> HeaderKeys(absl::string_view line) {
  line.remove_prefix(1);
  std::vector<std::string> keys;
  while (true) {
    QT_ASSIGN_OR_RETURN(std::string key, TakeKey(&line));
    keys.push_back(std::move(key));
    SkipBlanks(&line);
    if (absl::ConsumePrefix(&line, ".")) continue;
    if (absl::ConsumePrefix(&line, "]")) break;
    return absl::InvalidArgumentError(
        "expected ] at the end of the section's name; quote a name "
        "with other characters than letters, digits, - and _");
  }
  QT_RETURN_IF_ERROR(CheckLineEnd(line));
  const bool known = keys.size() == 2 || (keys.size() == 3 && TableNamed(keys[2]) != nullptr);
  if (!known || keys[1].empty()) {
    return absl::InvalidArgumentError(
        "expected [models.NAME], [models.NAME.prompts] or [models.NAME.adapters]; quote a name "
        "with dots");
  }
  return keys;
}

bool IsModelHeader(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "[")) return false;
  SkipBlanks(&line);
  return absl::ConsumePrefix(&line, "models") && !line.empty() && !IsBare(line.front());
}

class Parser {
 public:
  explicit Parser(std::string path) : path_(std::move(path)) {}

  // Parses line `number` of the file. Returns true if it belongs to a section [models.NAME], false
  // if it belongs to another part of the file.
  absl::StatusOr<bool> TakeLine(absl::string_view line, int number) {
    const std::string where = absl::StrCat(path_, ":", number, ": ");
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    absl::Status status;
    if (absl::StartsWith(text, "[")) {
      section_ = nullptr;
      if (!IsModelHeader(text)) return false;
      status = Open(text, where);
    } else if (section_ == nullptr) {
      return false;
    } else if (!text.empty() && text.front() != '#') {
      status = Set(text, where);
    }
    if (status.ok() && !IsUtf8({line.data(), line.size()})) {
      status = absl::InvalidArgumentError("the text is not UTF-8");
    }
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(where, status.message()));
    return true;
  }

  std::vector<ModelSection> Sections() && { return std::move(sections_); }

 private:
  absl::Status Open(absl::string_view text, const std::string& where) {
    QT_ASSIGN_OR_RETURN(const std::vector<std::string> keys, HeaderKeys(text));
    table_ = keys.size() == 3 ? keys[2] : "";
    const auto found = std::find_if(sections_.begin(), sections_.end(),
                                    [&](const ModelSection& s) { return s.name == keys[1]; });
    const bool is_new = found == sections_.end();
    section_ = is_new ? &sections_.emplace_back() : &*found;
    std::vector<std::string>& opened = opened_;
    const std::string full = absl::StrJoin(keys, "\n");
    if (std::find(opened.begin(), opened.end(), full) != opened.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("[", absl::StrJoin(keys, "."), "] is in the file twice"));
    }
    opened.push_back(full);
    if (is_new) {
      section_->name = keys[1];
      section_->where = absl::StrCat(where, "[models.", keys[1], "]");
    }
    return absl::OkStatus();
  }

  absl::Status Set(absl::string_view text, const std::string& where) {
    ModelSetting setting;
    QT_ASSIGN_OR_RETURN(setting.key, TakeKey(&text));
    const bool plain = table_.empty();
    std::vector<ModelSetting>& settings =
        plain ? section_->settings : section_->*TableNamed(table_);
    const std::string shown =
        absl::StrCat("models.", section_->name, plain ? "." : "." + table_ + ".", setting.key);
    if (plain) absl::StrReplaceAll({{"_", "-"}}, &setting.key);
    setting.where = absl::StrCat(where, shown);
    for (const ModelSetting& other : settings) {
      if (other.key == setting.key) {
        return absl::InvalidArgumentError(absl::StrCat(shown, ": is set twice"));
      }
    }
    SkipBlanks(&text);
    if (!absl::ConsumePrefix(&text, "=")) {
      return absl::InvalidArgumentError(absl::StrCat(shown, ": expected KEY = VALUE"));
    }
    absl::StatusOr<std::string> value = TakeValue(&text);
    const absl::Status status = value.ok() ? CheckLineEnd(text) : value.status();
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(shown, ": ", status.message()));
    }
    setting.value = *std::move(value);
    settings.push_back(std::move(setting));
    return absl::OkStatus();
  }

  const std::string path_;
  std::vector<ModelSection> sections_;
  std::vector<std::string> opened_;  // headers so far
  ModelSection* section_ = nullptr;  // null: not in a section of a model
  std::string table_;  // of the section of a model, such as "prompts"; empty: the section itself
};

// Returns the text as a TOML string in double quotes, with escapes.
std::string TomlString(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
      case '\\':
        quoted += {'\\', c};
        break;
      case '\n':
        quoted += "\\n";
        break;
      case '\t':
        quoted += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          absl::StrAppend(&quoted, absl::StrFormat("\\u%04x", static_cast<unsigned>(c)));
        } else {
          quoted.push_back(c);
        }
    }
  }
  return quoted + "\"";
}

std::string Key(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), IsBare) ? key : TomlString(key);
}

}  // namespace

absl::StatusOr<std::vector<ModelSection>> TakeModelSections(const std::string& path,
                                                            std::string* text) {
  Parser parser(path);
  std::vector<std::string> rest;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    QT_ASSIGN_OR_RETURN(const bool taken, parser.TakeLine(line, ++number));
    rest.emplace_back(taken ? absl::string_view() : line);
  }
  *text = absl::StrJoin(rest, "\n");
  return std::move(parser).Sections();
}

std::string PrintModelSections(const std::vector<ModelSection>& sections) {
  std::string text;
  const auto print = [&text](const std::vector<ModelSetting>& settings) {
    for (const ModelSetting& setting : settings) {
      if (setting.overridden) continue;
      absl::StrAppend(&text, Key(setting.key), " = ", TomlString(setting.value), "\n");
    }
  };
  for (const ModelSection& section : sections) {
    absl::StrAppend(&text, "\n[models.", Key(section.name), "]\n");
    print(section.settings);
    for (const char* const table : {"prompts", "adapters"}) {
      const std::vector<ModelSetting>& settings = section.*TableNamed(table);
      if (settings.empty()) continue;
      absl::StrAppend(&text, "\n[models.", Key(section.name), ".", table, "]\n");
      print(settings);
    }
  }
  return text;
}

}  // namespace quintet
