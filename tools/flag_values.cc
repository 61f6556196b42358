#include "tools/flag_values.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

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

namespace quintet {
namespace {

bool FromArgvOnly(const std::string& name) {
  return name == "help" || name == "version" || name == "print-config";
}

CLI::Option* FindFlag(CLI::App* command, const std::string& key) {
  const std::string name = absl::StrReplaceAll(key, {{"_", "-"}});
  if (FromArgvOnly(name) || name == "config") return nullptr;
  return command->get_option_no_throw("--" + name);
}

CLI::App* Root(CLI::App* command) {
  while (command->get_parent() != nullptr) command = command->get_parent();
  return command;
}

bool IsCommand(CLI::App* root, const std::string& section) {
  const std::vector<CLI::App*> all = AllCommands(root);
  return std::any_of(all.begin(), all.end(), [&](const CLI::App* command) {
    return CommandPath(*command, ".") == section;
  });
}

// Quotes a value for the config file. CLI11 reads strings in single or double quotes, but no
// escapes. A value that contains double quotes or backslashes is therefore put in single quotes,
// any other value in double quotes.
std::string ConfigQuoted(const std::string& value) {
  const char quote = value.find_first_of("\"\\") == std::string::npos ? '"' : '\'';
  return quote + value + quote;
}

}  // namespace

CLI::Validator WholeInRange(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        uint64_t value = 0;
        if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return "";
        return absl::StrCat("expected a whole number from ", least, " to ", most, ", got ", text);
      },
      "");
}

CLI::Validator AutoOrInRange(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        uint64_t value = 0;
        if (text == "auto") return "";
        if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return "";
        return absl::StrCat("expected auto or a whole number from ", least, " to ", most, ", got ",
                            text);
      },
      "");
}

CLI::Validator RealInRange(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= least && value <= most) return "";
        return absl::StrFormat("expected a number from %.15g to %.15g, got %s", least, most, text);
      },
      "");
}

CLI::Validator AnyReal() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double value = 0;
        return absl::SimpleAtod(text, &value) ? "" : absl::StrCat("expected a number, got ", text);
      },
      "");
}

std::string FlagErrorMessage(const CLI::Error& error) {
  const std::string text = error.what();
  const auto parts = [&](const char* pattern) {
    std::smatch match;
    std::regex_match(text, match, std::regex(pattern));
    return match;
  };
  // CLI11's error "Could not convert" can only come from a boolean flag, because the values of
  // numeric flags are validated before CLI11 converts them.
  if (const std::smatch m = parts("Could not convert: (\\S+) = ([^]*)"); !m.empty()) {
    return absl::StrCat(m.str(1), ": expected true or false, got ", m.str(2));
  }
  if (const std::smatch m = parts("(\\S+): At Most 1 required but received (\\d+)"); !m.empty()) {
    return absl::StrCat(m.str(1), ": expected once, got it ", m.str(2), " times");
  }
  if (const std::smatch m = parts("(\\S+): 1 required (.*) missing"); !m.empty()) {
    return absl::StrCat(m.str(1), ": expected a value (", m.str(2), "), got none");
  }
  return text;
}

std::string DefaultText(const CLI::Option& option) {
  const std::string text = option.get_default_str();
  const bool empty_list = !text.empty() && text.find_first_not_of("[]{}") == std::string::npos;
  return empty_list ? "[]" : text;
}

std::string VariableName(const CLI::Option& option) {
  if (option.get_lnames().empty() || FromArgvOnly(option.get_lnames().front())) return "";
  const std::string name = absl::StrReplaceAll(option.get_lnames().front(), {{"-", "_"}});
  return absl::StrCat("QUINTET_", absl::AsciiStrToUpper(name));
}

absl::Status SetFlag(CLI::Option* option, std::vector<std::string> values,
                     const std::string& where) {
  try {
    if (option->get_expected_max() == 0) {  // a boolean flag
      const std::string value = values.empty() ? "true" : values.front();
      option->add_result(option->get_flag_value(option->get_lnames().front(), value));
    } else {
      option->add_result(std::move(values));
    }
    option->run_callback();
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", FlagErrorMessage(error)));
  }
  return absl::OkStatus();
}

absl::Status ApplyEnvironment(CLI::App* command) {
  for (CLI::Option* option : command->get_options()) {
    const std::string variable = VariableName(*option);
    if (option->count() > 0 || variable.empty()) continue;
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    QT_RETURN_IF_ERROR(SetFlag(option, {value}, variable));
  }
  return absl::OkStatus();
}

std::vector<std::string> MisspeltVariables(CLI::App* root) {
  constexpr absl::string_view kPrefix = "QUINTET_";
  // The environment variables that belong to no flag: the kernels, the Python client and the tests
  // read them. The loop below adds the variables of all flags.
  std::vector<std::string> known = {"QUINTET_CPU_ISA",       "QUINTET_CACHE_DIR",
                                    "QUINTET_CUDA_PORTABLE", "QUINTET_API_KEY",
                                    "QUINTET_BINARY",        "QUINTET_CUDA_LONG_ATTENTION",
                                    "QUINTET_WERROR",        "QUINTET_GOLDEN_DIR"};
  for (const CLI::App* command : AllCommands(root)) {
    for (const CLI::Option* option : command->get_options()) {
      if (std::string name = VariableName(*option); !name.empty()) known.push_back(std::move(name));
    }
  }
  // Names are compared in upper case and without the prefix that they all have.
  std::vector<std::string> suffixes;
  for (const std::string& name : known) suffixes.push_back(name.substr(kPrefix.size()));
  std::vector<std::string> warnings;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> variable =
        absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    const std::string& name = variable.first;
    if (!absl::StartsWithIgnoreCase(name, kPrefix) || absl::StartsWith(variable.second, "tcp://") ||
        std::find(known.begin(), known.end(), name) != known.end()) {
      continue;  // Kubernetes sets QUINTET_PORT=tcp://... for a service named quintet
    }
    const std::string suffix = absl::AsciiStrToUpper(name.substr(kPrefix.size()));
    if (const std::string nearest = Nearest(suffix, suffixes); !nearest.empty()) {
      warnings.push_back(absl::StrCat(
          name, ": no flag has this environment variable; did you mean ", kPrefix, nearest, "?"));
    }
  }
  return warnings;
}

namespace {

absl::StatusOr<std::string> ReadConfigFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code unknown;
  if (!file.good() || std::filesystem::is_directory(path, unknown)) {
    return absl::InvalidArgumentError(absl::StrCat("--config: cannot read ", path));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns "serve.toml:4: bench.seed" for an item of the file, without the number if its line is not
// found, for example because the key is quoted.
std::string WhereIs(const CLI::ConfigItem& item, const std::string& path, const std::string& text) {
  std::string section;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, "[")) {
      section = std::string(absl::StripAsciiWhitespace(line.substr(0, line.find(']'))));
    } else if (section == absl::StrJoin(item.parents, ".") &&
               absl::ConsumePrefix(&line, item.name) &&
               absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "=")) {
      return absl::StrCat(path, ":", number, ": ", item.fullname());
    }
  }
  return absl::StrCat(path, ": ", item.fullname());
}

}  // namespace

absl::StatusOr<std::vector<ModelSection>> ApplyConfigFile(CLI::App* command,
                                                          const std::string& path) {
  QT_ASSIGN_OR_RETURN(std::string text, ReadConfigFile(path));
  QT_ASSIGN_OR_RETURN(std::vector<ModelSection> sections, TakeModelSections(path, &text));
  for (ModelSection& section : sections) {
    for (ModelSetting& setting : section.settings) {
      const CLI::Option* option = FindFlag(command, setting.key);
      setting.overridden = option != nullptr && option->count() > 0;
    }
  }
  std::vector<CLI::ConfigItem> items;
  try {
    std::istringstream rest(text);
    items = CLI::ConfigTOML().from_config(rest);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
  CLI::App* root = Root(command);
  const std::string own_section = CommandPath(*command, ".");
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--")
      continue;  // CLI11's markers of the start and end of a section
    const std::string where = WhereIs(item, path, text);
    if (!item.parents.empty()) {
      const std::string section = absl::StrJoin(item.parents, ".");
      if (!IsCommand(root, section)) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": no such subcommand"));
      }
      if (section != own_section) continue;
    }
    CLI::Option* option = FindFlag(command, item.name);
    if (option == nullptr) {
      bool elsewhere = false;
      if (item.parents.empty()) {
        for (CLI::App* other : AllCommands(root)) {
          elsewhere = elsewhere || FindFlag(other, item.name) != nullptr;
        }
      }
      if (elsewhere) continue;
      const std::string nearest = Nearest("--" + item.name, FlagNames(*command));
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": unknown key",
          nearest.empty() ? "" : absl::StrCat(". Did you mean \"", nearest.substr(2), "\"?")));
    }
    if (option->count() > 0) continue;
    QT_RETURN_IF_ERROR(SetFlag(option, item.inputs, where));
  }
  return sections;
}

std::string PrintConfig(const CLI::App& command) {
  std::string text = absl::StrCat("[", CommandPath(command, "."), "]\n");
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (FromArgvOnly(name) || name == "config") continue;
    std::vector<std::string> values = option->results();
    // A flag that is not set is printed as a comment: some flags have another effect when they are
    // set, even when they are set to their default.
    const bool unset = values.empty();
    if (option->get_expected_max() == 0) {
      const bool on = !unset && CLI::detail::to_flag_value(values.front()) > 0;
      absl::StrAppend(&text, unset ? "# " : "", name, " = ", on ? "true" : "false", "\n");
      continue;
    }
    if (unset) values = {DefaultText(*option)};
    for (std::string& value : values) value = ConfigQuoted(value);
    const std::string value =
        values.size() == 1 ? values.front() : absl::StrCat("[", absl::StrJoin(values, ", "), "]");
    absl::StrAppend(&text, unset ? "# " : "", name, " = ", value, "\n");
  }
  return text;
}

int EditDistance(const std::string& a, const std::string& b) {
  // rows[i][j] is the edit distance between the first i characters of a and the first j of b.
  std::vector<std::vector<int>> rows(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      int& distance = rows[i][j];
      if (i == 0 || j == 0) {
        distance = static_cast<int>(i + j);
        continue;
      }
      const int replaced = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      distance = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance = std::min(distance, rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.size()][b.size()];
}

std::string Nearest(const std::string& word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 64, kShortWord = 4;
  if (word.size() > kLongestWord) return "";
  const int most = word.size() <= kShortWord ? 1 : 2;
  const auto rank = [&word](const std::string& candidate) {
    const auto difference =
        static_cast<std::ptrdiff_t>(candidate.size()) - static_cast<std::ptrdiff_t>(word.size());
    return std::pair(EditDistance(word, candidate), std::abs(difference));
  };
  std::string nearest;
  std::pair<int, std::ptrdiff_t> best;
  for (const std::string& candidate : candidates) {
    const auto found = rank(candidate);
    if (found.first > most || (!nearest.empty() && found >= best)) continue;
    best = found;
    nearest = candidate;
  }
  return nearest;
}

std::vector<CLI::App*> AllCommands(CLI::App* root) {
  std::vector<CLI::App*> all;
  for (CLI::App* command : root->get_subcommands({})) {
    all.push_back(command);
    for (CLI::App* below : AllCommands(command)) all.push_back(below);
  }
  return all;
}

std::string CommandPath(const CLI::App& command, const std::string& separator) {
  const CLI::App* parent = command.get_parent();
  if (parent == nullptr || parent->get_parent() == nullptr) return command.get_name();
  return absl::StrCat(CommandPath(*parent, separator), separator, command.get_name());
}

std::vector<std::string> FlagNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace quintet
