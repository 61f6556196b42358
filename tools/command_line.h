// The command line of quintet: its subcommands, and where flag values come from.
//
// Precedence: flag > environment > --config file > default. The environment variable of --num-beams
// is QUINTET_NUM_BEAMS. The file is TOML. Its keys are flag names without the leading dashes, with
// dashes or underscores. Keys at the top of the file apply to every subcommand that has the flag;
// keys in a section named after a subcommand ([bench.serve] for bench serve) apply to that one, and
// sections [models.NAME] to one model of serve (model_sections.h).
// CLI11 is used only to parse argv, because it would give the file precedence over the environment.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/exit_code.h"
#include "tools/model_sections.h"

namespace quintet {

struct CommandText {
  // Name of the subcommand. "bench serve" adds the subcommand serve to the subcommand bench, which
  // must have been added before.
  std::string name;
  std::string description;   // one line
  std::string example;       // shown at the end of --help
  std::string details = "";  // shown before the example
};

class CommandLine {
 public:
  CommandLine();

  // Registers a subcommand and returns its CLI11 app, to which the caller adds flags in groups.
  // Rules for flags:
  // - Bind each flag to a variable that contains the default (or set default_str), so that --help
  //   shows the default.
  // - Never use CLI11's envname(), required() or set_config(): they ignore values from our
  //   environment variables and --config file. To make a flag mandatory, use Require below.
  // - Set type_name() to the unit of the value. Flags that take several values need
  //   allow_extra_args(false).
  // - Each name after the first is an alias that --help does not show.
  // `run` is called after all values are resolved and returns the exit code. It must own the
  // variables that the flags are bound to.
  CLI::App* AddCommand(const CommandText& text, std::function<int()> run);
  // Makes a flag or positional argument mandatory: the command fails unless the command line, the
  // environment or the --config file gives it a value.
  void Require(CLI::Option* option) { required_.push_back(option); }
  // Makes --print-config of `command` append the result of note() as a comment to its output. The
  // comment shows values that the command chooses for this machine. An empty result adds nothing.
  void AddConfigNote(CLI::App* command, std::function<std::string()> note) {
    commands_[command].note = std::move(note);
  }

  // Makes `command` read the sections [models.NAME] of the --config file: they are passed to
  // `take`, which must check them, before `run` is called or the configuration is printed. All
  // other commands ignore these sections.
  using TakeSections = std::function<absl::Status(const std::vector<ModelSection>&)>;
  void AddModelSections(CLI::App* command, TakeSections take) {
    commands_[command].take_sections = std::move(take);
  }

  // Parses argv, resolves the flags and runs the chosen subcommand. Returns the exit code.
  int Run(int argc, char** argv);
  // Resolves the flags of a subcommand again, from the --config file as it is now and the arguments
  // that were passed to first.Run, but does not run the subcommand. This object must have
  // registered the subcommand that the arguments choose; it takes the names of all other
  // subcommands from `first`. Returns INVALID_ARGUMENT if a value is invalid or missing.
  absl::Status ResolveAgain(const CommandLine& first);

 private:
  struct Common {
    std::string config, log_format = "text", log_level = "info";
    bool print_config = false;
    std::function<int()> run;
    std::function<std::string()> note;
    TakeSections take_sections;
    std::vector<ModelSection> sections;
  };

  static void AddCommonFlags(CLI::App* command, Common* common);
  // Sets each flag of `command` that argv does not set, from its environment variable or the
  // --config file.
  static absl::Status Resolve(CLI::App* command, Common* common);
  absl::Status CheckRequired(const CLI::App* command) const;
  int RunParsed(CLI::App* command);
  int ReportUnknown(CLI::App* command, const std::string& word);
  // Prints the help of the subcommand `path`, for example for `quintet help bench serve`.
  int ShowHelp(const std::vector<std::string>& path);

  CLI::App app_;
  std::map<const CLI::App*, Common> commands_;
  std::vector<CLI::Option*> required_;
  int argc_ = 0;  // the arguments of Run
  char** argv_ = nullptr;
};

// Each of these functions adds one subcommand and is defined in the file named after the subcommand
// (tools/generate.cc, ...).
void AddGenerateCommand(CommandLine& line);
void AddEncodeCommand(CommandLine& line);
void AddScoreCommand(CommandLine& line);
void AddClassifyCommand(CommandLine& line);
void AddConvertCommand(CommandLine& line);
void AddInspectCommand(CommandLine& line);
void AddServeCommand(CommandLine& line);
void AddHealthCommand(CommandLine& line);
void AddAdminCommand(CommandLine& line);
void AddBenchCommand(CommandLine& line);
void AddBenchServeCommand(CommandLine& line);   // after AddBenchCommand
void AddBenchEngineCommand(CommandLine& line);  // after AddBenchCommand
void AddCompletionCommand(CommandLine& line);
void AddManCommand(CommandLine& line);

}  // namespace quintet
