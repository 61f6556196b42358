// quintet man DIR: writes manual pages to DIR, one for the binary and one for each subcommand. Like
// --help, they are generated from the registered flags.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/command_line.h"
#include "tools/flag_values.h"
#include "tools/version.h"

namespace quintet {
namespace {

// Escapes text for troff: backslashes, and characters for which troff would print a typographic
// variant.
std::string Escaped(const std::string& text) {
  const std::string line = absl::StrReplaceAll(text, {{"\\", "\\e"},
                                                      {"-", "\\-"},
                                                      {"'", "\\(aq"},
                                                      {"`", "\\(ga"},
                                                      {"^", "\\(ha"},
                                                      {"~", "\\(ti"}});
  // A line that begins with a dot would be a request (command) to troff, so it gets the prefix \&,
  // which prints nothing.
  return !line.empty() && line[0] == '.' ? "\\&" + line : line;
}

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string PageName(const CLI::App& command) {
  return command.get_parent() == nullptr ? "quintet" : "quintet-" + CommandPath(command, "-");
}

// Returns a command's one-line summary in the style of man pages: "Generate text." becomes
// "generate text".
std::string Summary(const CLI::App& command) {
  std::string text(absl::StripPrefix(command.get_description(), "Quintet: "));
  if (!text.empty() && text.back() == '.') text.pop_back();
  const bool acronym = text.size() > 1 && std::isupper(static_cast<unsigned char>(text[1]));
  if (!text.empty() && !acronym) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  return Escaped(text);
}

std::string Synopsis(const CLI::App& command) {
  const std::string path = command.get_parent() == nullptr ? "" : " " + CommandPath(command, " ");
  std::string text = absl::StrCat(".B quintet", path, "\n[\\fIOPTIONS\\fR]");
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) absl::StrAppend(&text, " \\fI", option->get_name(true), "\\fR");
  }
  if (!command.get_subcommands({}).empty()) absl::StrAppend(&text, " [\\fISUBCOMMAND\\fR]");
  return text + "\n";
}

// Returns the entry of one flag or positional argument, with the texts that --help shows. A CLI11
// option can be both at the same time; `is_positional` selects which of the two is described.
std::string Entry(const CLI::App& command, const CLI::Option* option, bool is_positional) {
  const auto formatter = std::static_pointer_cast<CLI::Formatter>(command.get_formatter());
  return absl::StrCat(".TP\n\\fB", Escaped(formatter->make_option_name(option, is_positional)),
                      "\\fR", Escaped(formatter->make_option_opts(option)), "\n",
                      Escaped(formatter->make_option_desc(option)), "\n");
}

// Returns the sections of the options: first the positional arguments, then the groups of flags in
// the order of --help.
std::string Options(const CLI::App& command) {
  std::string positionals;
  std::vector<std::pair<std::string, std::string>> groups;  // name, entries
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) positionals += Entry(command, option, true);
    if (!option->nonpositional()) continue;
    const std::string& name = option->get_group();
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& known) { return known.first == name; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, ""});
    group->second += Entry(command, option, false);
  }
  if (!positionals.empty()) groups.insert(groups.begin(), {"Positionals", positionals});
  std::string text;
  for (const auto& [name, entries] : groups) {
    absl::StrAppend(&text, ".SS ", Escaped(name), "\n", entries);
  }
  return text;
}

// The text at the end of --help, converted to troff. A block (lines up to an empty line) that has a
// heading becomes a section, in which line breaks are kept. Any other block becomes a paragraph of
// the description.
struct Footer {
  std::string paragraphs, sections;
};

Footer FooterOf(const CLI::App& command) {
  Footer footer;
  const std::string text = command.get_footer();
  for (const std::string& block : std::vector<std::string>(absl::StrSplit(text, "\n\n"))) {
    std::vector<std::string> lines = absl::StrSplit(block, '\n', absl::SkipEmpty());
    if (lines.empty()) continue;
    const bool heading = lines[0].back() == ':' && lines.size() > 1 && lines[1][0] == ' ';
    std::string* out = heading ? &footer.sections : &footer.paragraphs;
    if (heading) {
      lines[0].pop_back();
      absl::StrAppend(out, ".SH ", Upper(Escaped(lines[0])), "\n.EX\n");
      lines.erase(lines.begin());
    } else {
      absl::StrAppend(out, ".PP\n");
    }
    for (const std::string& line : lines) absl::StrAppend(out, Escaped(line), "\n");
    if (heading) absl::StrAppend(out, ".EE\n");
  }
  return footer;
}

std::string Page(const CLI::App& command) {
  const Footer footer = FooterOf(command);
  // The requests .nh and .ad l turn off hyphenation and justification, because lines contain names
  // that users copy.
  std::string page =
      absl::StrCat(".TH ", Upper(Escaped(PageName(command))), " 1 \"\" \"quintet ",
                   Escaped(Version()), "\" \"Quintet\"\n.nh\n.ad l\n.SH NAME\n",
                   Escaped(PageName(command)), " \\- ", Summary(command), "\n.SH SYNOPSIS\n",
                   Synopsis(command), ".SH DESCRIPTION\n", Escaped(command.get_description()), "\n",
                   footer.paragraphs, ".SH OPTIONS\n", Options(command));
  const std::vector<const CLI::App*> below = command.get_subcommands({});
  if (!below.empty()) absl::StrAppend(&page, ".SH SUBCOMMANDS\n");
  for (const CLI::App* sub : below) {
    absl::StrAppend(&page, ".TP\n.BR ", Escaped(PageName(*sub)), " (1)\n",
                    Escaped(sub->get_description()), "\n");
  }
  absl::StrAppend(&page, footer.sections);
  if (command.get_parent() != nullptr) absl::StrAppend(&page, ".SH SEE ALSO\n.BR quintet (1)\n");
  return page;
}

int WritePages(CLI::App* root, const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);  // errors are reported when pages are written
  std::vector<CLI::App*> commands = AllCommands(root);
  commands.push_back(root);
  for (const CLI::App* command : commands) {
    const std::filesystem::path path = folder / (PageName(*command) + ".1");
    std::ofstream file(path);
    file << Page(*command);
    file.close();
    if (!file) {
      return Fail(kExitFailed,
                  absl::UnavailableError(absl::StrCat("cannot write ", path.string())));
    }
  }
  return kExitDone;
}

}  // namespace

void AddManCommand(CommandLine& line) {
  struct State {
    std::string folder;
    CLI::App* root = nullptr;
  };
  auto state = std::make_shared<State>();
  CLI::App* command = line.AddCommand(
      {"man", "Write the manual pages of quintet and its subcommands.", "quintet man man1"},
      [state] { return WritePages(state->root, state->folder); });
  state->root = command->get_parent();
  line.Require(
      command->add_option("folder", state->folder, "Folder for the pages; created if missing.")
          ->type_name("DIR"));
}

}  // namespace quintet
