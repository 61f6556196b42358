// quintet completion SHELL: prints a script that completes subcommands and flags, generated from
// the registered flags.
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/command_line.h"
#include "tools/flag_values.h"

namespace quintet {
namespace {

std::vector<std::string> Names(const std::vector<CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

std::string BashScript(CLI::App* root) {
  const std::vector<std::string> names = Names(root->get_subcommands({}));
  // List subcommands before their parents: the first matching pattern of the case wins.
  std::string cases;
  for (CLI::App* command : AllCommands(root)) {
    std::vector<std::string> words = Names(command->get_subcommands({}));
    for (const std::string& flag : FlagNames(*command)) words.push_back(flag);
    cases = absl::StrCat("    \"", CommandPath(*command, " "), " \"*) words=\"",
                         absl::StrJoin(words, " "), "\" ;;\n", cases);
  }
  return absl::StrCat(
      "_quintet() {\n"
      "  local words current=\"${COMP_WORDS[COMP_CWORD]}\"\n"
      "  case \"${COMP_WORDS[1]} ${COMP_WORDS[2]} \" in\n",
      cases, "    *) words=\"", absl::StrJoin(names, " "), " --help --version\" ;;\n",
      "  esac\n"
      "  if [[ \"$COMP_CWORD\" -gt 1 && \"$current\" != -* ]]; then\n"
      "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _quintet quintet\n");
}

std::string FishScript(CLI::App* root) {
  std::string script = "complete -c quintet -n __fish_use_subcommand -f\n";
  for (CLI::App* command : AllCommands(root)) {
    const CLI::App* parent = command->get_parent();
    const std::string before =
        parent == root ? "__fish_use_subcommand"
                       : absl::StrCat("__fish_seen_subcommand_from ", parent->get_name());
    absl::StrAppend(&script, "complete -c quintet -n '", before, "' -a ", command->get_name(),
                    "\n");
    for (const std::string& flag : FlagNames(*command)) {
      absl::StrAppend(&script, "complete -c quintet -n '__fish_seen_subcommand_from ",
                      command->get_name(), "' -l ", flag.substr(2), "\n");
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
                        const std::string script = state->shell == "fish" ? FishScript(state->root)
                                                                          : BashScript(state->root);
                        // zsh runs the bash function through its own emulation.
                        if (state->shell == "zsh")
                          std::fputs("autoload -U +X bashcompinit && bashcompinit\n", stdout);
                        std::fputs(script.c_str(), stdout);
                        return kExitDone;
                      });
  state->root = command->get_parent();
  line.Require(command->add_option("shell", state->shell, "Shell: bash, zsh or fish.")
                   ->check(CLI::IsMember({"bash", "zsh", "fish"}))
                   ->type_name("SHELL"));
}

}  // namespace quintet
