// The command line as a whole: subcommands, and where the value of a flag comes from.
//
// Flag > environment > --config file > default. The variable of --num-beams is QUINTET_NUM_BEAMS.
// The file is TOML: keys are flag names without the leading dashes (underscores serve too), at the
// top for every subcommand that has the flag, or in a section named after one subcommand
// ([bench.serve] for bench serve). CLI11 is used for argv alone, since it lets its file beat the
// environment.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/exit_code.h"

namespace quintet {

struct CommandText {
  std::string name;          // "bench serve": the subcommand serve of bench, which is there already
  std::string description;   // one line
  std::string example;       // shown at the end of --help
  std::string details = "";  // shown before the example
};

class CommandLine {
 public:
  CommandLine();

  // Registers a subcommand and returns its CLI11 app, to which the caller adds flags in groups.
  // Rules for flags:
  // - bind each to a variable that holds the default, so that --help shows it (or set default_str);
  // never use envname(),
  //   required() or set_config(): a value may still come from the environment or the file (use
  //   Require below);
  // - type_name() is the unit; vectors take allow_extra_args(false).
  // `run` is called once all values are settled, and returns the exit code. It must own what it and
  // the flags refer to.
  CLI::App* AddCommand(const CommandText& text, std::function<int()> run);
  // Makes a flag (or positional) mandatory, from wherever it comes.
  void Require(CLI::Option* option) { required_.push_back(option); }

  // Parses, settles the flags, and runs the chosen subcommand. Returns the process's exit code.
  int Run(int argc, char** argv);

 private:
  struct Common {
    std::string config, log_format = "text", log_level = "info";
    bool print_config = false;
    std::function<int()> run;
  };

  static void AddCommonFlags(CLI::App* command, Common* common);
  int RunParsed(CLI::App* command);
  int ReportUnknown(CLI::App* command, const std::string& word) const;

  CLI::App app_;
  std::map<const CLI::App*, Common> commands_;
  std::vector<CLI::Option*> required_;
};

// Each is defined in the file named after it.
void AddGenerateCommand(CommandLine& line);
void AddEncodeCommand(CommandLine& line);
void AddScoreCommand(CommandLine& line);
void AddClassifyCommand(CommandLine& line);
void AddConvertCommand(CommandLine& line);
void AddInspectCommand(CommandLine& line);
void AddServeCommand(CommandLine& line);
void AddBenchCommand(CommandLine& line);
void AddBenchServeCommand(CommandLine& line);   // after AddBenchCommand
void AddBenchEngineCommand(CommandLine& line);  // after AddBenchCommand
void AddCompletionCommand(CommandLine& line);

}  // namespace quintet
