// quintet completion SHELL: prints a shell script that completes subcommands, flags, and the values
// of flags that accept only certain words. Generated from the registered flags.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/command_line.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

struct Word {
  std::string text;         // a subcommand, or a flag with its dashes
  std::string description;  // one sentence
  std::string values;       // of a flag: "auto f32 int8"; empty if any value is allowed
  bool takes_value = false;
};

// The words with which the user may continue the command line after one subcommand.
struct Choices {
  std::string path;  // "bench serve"; empty before a subcommand
  std::vector<Word> commands, flags;
};

std::string FirstSentence(const std::string& text) { return text.substr(0, text.find(". ")); }

// Returns the values that an option accepts if its type name lists them: "f32 bf16" for the type
// name "TYPE:{f32,bf16}", or if it is BOOL. Returns "" for an option without such a list.
std::string FixedValues(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "BOOL") return "true false";
  const size_t open = type.find(":{");
  if (open == std::string::npos || type.back() != '}') return "";
  return absl::StrReplaceAll(type.substr(open + 2, type.size() - open - 3), {{",", " "}});
}

std::vector<std::string> Split(const std::string& values) {
  return absl::StrSplit(values, ' ', absl::SkipEmpty());
}

Choices ChoicesOf(const CLI::App& command) {
  Choices choices;
  if (command.get_parent() != nullptr) choices.path = CommandPath(command, " ");
  for (const CLI::App* below : command.get_subcommands({})) {
    choices.commands.push_back({below->get_name(), FirstSentence(below->get_description())});
  }
  for (const CLI::Option* option : command.get_options()) {
    const std::string description = FirstSentence(option->get_description());
    const std::string values = FixedValues(*option);
    if (!option->get_lnames().empty()) {  // further long names are aliases
      choices.flags.push_back({"--" + option->get_lnames().front(), description, values,
                               option->get_expected_max() != 0});
    } else {
      for (const std::string& value : Split(values)) {
        choices.commands.push_back({value, description});
      }
    }
  }
  return choices;
}

// Adds the words that may follow `path`: the names of the subcommands of `command`. Then does the
// same for each of these subcommands. `path` is "help" for the root and, for example, "help bench"
// for the command bench.
void AddHelpChoices(const CLI::App& command, const std::string& path, std::vector<Choices>* all) {
  Choices choices;
  choices.path = path;
  for (const CLI::App* below : command.get_subcommands({})) {
    choices.commands.push_back({below->get_name(), FirstSentence(below->get_description())});
  }
  all->push_back(std::move(choices));
  for (const CLI::App* below : command.get_subcommands({})) {
    AddHelpChoices(*below, absl::StrCat(path, " ", below->get_name()), all);
  }
}

// Returns, for each subcommand, the words that may follow it. Nested subcommands come before their
// parents ("bench serve" before "bench"), because the scripts select with a shell `case`, in which
// the first matching pattern wins.
std::vector<Choices> AllChoices(CLI::App* root) {
  std::vector<Choices> all = {ChoicesOf(*root)};
  all.front().commands.push_back({"help", "Show the help of a subcommand."});
  AddHelpChoices(*root, "help", &all);
  for (const CLI::App* command : AllCommands(root)) all.push_back(ChoicesOf(*command));
  std::reverse(all.begin(), all.end());
  return all;
}

std::string CasePattern(const Choices& choices) {
  return choices.path.empty() ? "*" : absl::StrCat("\"", choices.path, " \"*");
}

std::string ShellQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string Names(const std::vector<Word>& words) {
  return absl::StrJoin(words, " ",
                       [](std::string* out, const Word& word) { out->append(word.text); });
}

// Joins the words as 'NAME:DESCRIPTION', the format of zsh's _describe.
std::string Described(const std::vector<Word>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const Word& word) {
    out->append(ShellQuoted(absl::StrCat(word.text, ":", word.description)));
  });
}

// Calls join(flag) for each flag that accepts only a fixed set of values, and concatenates the
// results.
template <typename Join>
std::string FixedFlags(const std::vector<Word>& flags, Join join) {
  std::string text;
  for (const Word& flag : flags) {
    if (!flag.values.empty()) absl::StrAppend(&text, join(flag));
  }
  return text;
}

std::string BashScript(const std::vector<Choices>& all) {
  std::string cases;
  for (const Choices& choices : all) {
    absl::StrAppend(
        &cases, "    ", CasePattern(choices), ")\n      commands=\"", Names(choices.commands),
        "\"\n      flags=\"", Names(choices.flags), "\"\n      values=(",
        FixedFlags(
            choices.flags,
            [](const Word& w) { return absl::StrCat("[", w.text, "]=\"", w.values, "\" "); }),
        ") ;;\n");
  }
  return absl::StrCat(
      "_quintet() {\n"
      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD - "
      "1]:-.}\"\n"
      "  local commands flags\n"
      "  local -A values\n"
      "  case \"${COMP_WORDS[*]:1:COMP_CWORD - 1} \" in\n",
      cases,
      "  esac\n"
      // Bash splits --flag=VALUE into three words.
      "  if [[ \"$current\" == = ]]; then\n"
      "    current=\"\"\n"
      "  elif [[ \"$previous\" == = ]]; then\n"
      "    previous=\"${COMP_WORDS[COMP_CWORD - 2]}\"\n"
      "  fi\n"
      "  if [[ -n \"${values[$previous]}\" ]]; then\n"
      "    COMPREPLY=($(compgen -W \"${values[$previous]}\" -- \"$current\"))\n"
      "  elif [[ \"$current\" == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -W \"$commands\" -- \"$current\"))\n"
      "    if [[ \"$COMP_CWORD\" -gt 1 ]]; then\n"
      "      COMPREPLY+=($(compgen -f -- \"$current\"))\n"
      "    fi\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _quintet quintet\n");
}

// Returns a script for zsh. A user can source it, or save it as _quintet in a folder of fpath, from
// which zsh loads it automatically.
std::string ZshScript(const std::vector<Choices>& all) {
  std::string cases;
  for (const Choices& choices : all) {
    absl::StrAppend(
        &cases, "    ", CasePattern(choices), ")\n      commands=(", Described(choices.commands),
        ")\n      flags=(", Described(choices.flags), ")\n      values=(",
        FixedFlags(
            choices.flags,
            [](const Word& w) { return absl::StrCat(w.text, " ", ShellQuoted(w.values), " "); }),
        ") ;;\n");
  }
  return absl::StrCat(
      "#compdef quintet\n"
      "compdef _quintet quintet\n"
      "_quintet() {\n"
      "  local -a commands flags\n"
      "  local -A values\n"
      "  case \"${words[2,CURRENT-1]} \" in\n",
      cases,
      "  esac\n"
      "  local flag=\"${words[CURRENT-1]}\"\n"
      "  if [[ \"$PREFIX\" == --*=* ]]; then\n"
      "    flag=\"${PREFIX%%=*}\"\n"
      "    compset -P '*='\n"
      "  fi\n"
      "  local fixed=\"${values[$flag]}\"\n"
      "  if [[ -n \"$fixed\" ]]; then\n"
      "    compadd -- ${=fixed}\n"
      "  elif [[ \"$PREFIX\" == -* ]]; then\n"
      "    _describe -o flag flags\n"
      "  else\n"
      "    (( $#commands )) && _describe subcommand commands\n"
      "    (( CURRENT > 2 )) && _files\n"
      "  fi\n"
      "}\n"
      "if [[ \"${funcstack[1]}\" == _quintet ]]; then _quintet \"$@\"; fi\n");
}

std::string FishScript(const std::vector<Choices>& all) {
  std::string script =
      "# Whether the words before the cursor begin with one of the given subcommands.\n"
      "function __quintet_after\n"
      "  set -l words (commandline -opc)\n"
      "  for path in $argv\n"
      "    string match -q -- \"$path *\" (string join -- ' ' $words[2..])' '; and return 0\n"
      "  end\n"
      "  return 1\n"
      "end\n"
      "complete -c quintet -n 'test (count (commandline -opc)) -eq 1' -f\n";
  for (const Choices& choices : all) {
    // `below`: the subcommands of this command. If the command line contains one of them, do not
    // offer the words of this command: "bench serve" is not followed by the words for "bench".
    std::vector<std::string> below;
    for (const Choices& other : all) {
      const bool is_below =
          choices.path.empty() ? !other.path.empty() : other.path.rfind(choices.path + " ", 0) == 0;
      if (is_below) below.push_back(absl::StrCat("\"", other.path, "\""));
    }
    std::vector<std::string> conditions;
    if (!choices.path.empty()) {
      conditions.push_back(absl::StrCat("__quintet_after \"", choices.path, "\""));
    }
    if (!below.empty()) {
      conditions.push_back(absl::StrCat("not __quintet_after ", absl::StrJoin(below, " ")));
    }
    const std::string start = absl::StrCat("complete -c quintet -n ",
                                           ShellQuoted(absl::StrJoin(conditions, "; and ")), " ");
    for (const Word& word : choices.commands) {
      absl::StrAppend(&script, start, "-a ", word.text, " -d ", ShellQuoted(word.description),
                      "\n");
    }
    for (const Word& flag : choices.flags) {
      const std::string value = !flag.values.empty() ? " -x -a " + ShellQuoted(flag.values)
                                : flag.takes_value   ? " -r"
                                                     : "";
      absl::StrAppend(&script, start, "-l ", flag.text.substr(2), value, " -d ",
                      ShellQuoted(flag.description), "\n");
    }
  }
  return script;
}

}  // namespace

void AddCompletionCommand(CommandLine& line) {
  struct State {
    std::string shell;
    CLI::App* root = nullptr;
  };
  auto state = std::make_shared<State>();
  CLI::App* command =
      line.AddCommand({"completion", "Print a completion script for bash, zsh or fish.",
                       "quintet completion bash > /etc/bash_completion.d/quintet"},
                      [state] {
                        const std::vector<Choices> all = AllChoices(state->root);
                        const std::string script = state->shell == "fish"  ? FishScript(all)
                                                   : state->shell == "zsh" ? ZshScript(all)
                                                                           : BashScript(all);
                        std::fputs(script.c_str(), stdout);
                        return kExitDone;
                      });
  state->root = command->get_parent();
  line.Require(command->add_option("shell", state->shell, "Shell: bash, zsh or fish.")
                   ->check(CLI::IsMember({"bash", "zsh", "fish"}))
                   ->type_name("SHELL"));
}

}  // namespace quintet
