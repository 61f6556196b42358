#include "tools/command_line.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/cpu_features.h"
#include "spdlog/spdlog.h"
#include "tools/flag_values.h"
#include "tools/logging.h"
#include "tools/version.h"

namespace quintet {
namespace {

// Formats a flag in --help, for example "--num-beams BEAMS What it does. [1] ($QUINTET_NUM_BEAMS)":
// the default is in [], the environment variable in ().
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }

  // Shows only the first long name of a flag. Further names are hidden aliases, for example the
  // flag's name in another serving engine.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return option->get_lnames().size() > 1 ? option->get_name()
                                           : Formatter::make_option_name(option, is_positional);
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const bool is_switch = option->get_expected_max() == 0;
    if (is_switch || option->get_type_name().empty()) return "";
    return absl::StrCat(" ", option->get_type_name());
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    const std::string variable = VariableName(*option);
    std::string shown = DefaultText(*option);
    if (option->get_expected_max() == 0 && !variable.empty()) shown = "off";
    if (shown.size() > 2 && shown.front() == '[') shown = shown.substr(1, shown.size() - 2);
    if (!shown.empty() && shown != "[]") absl::StrAppend(&text, " [", shown, "]");
    if (!variable.empty()) absl::StrAppend(&text, " ($", variable, ")");
    return text;
  }
};

// Checks the value of the environment variable QUINTET_CPU_ISA, which limits the instruction sets
// that kernels may use (kernels/runtime/cpu_features.h). The kernels read it without a check.
absl::Status CheckIsaVariable() {
  const char* value = std::getenv("QUINTET_CPU_ISA");
  if (value == nullptr) return absl::OkStatus();
  for (const char* known : {"baseline", "avx2", "avx512", "avx512vnni", "best"}) {
    if (std::string(value) == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "QUINTET_CPU_ISA: expected baseline, avx2, avx512, avx512vnni or best, got \"", value, "\""));
}

// Adds to `to` every subcommand of `from` that `to` lacks, but without its flags.
void AddNames(const CLI::App* from, CLI::App* to) {
  for (const CLI::App* command : from->get_subcommands({})) {
    const std::string& name = command->get_name();
    const std::vector<CLI::App*> known =
        to->get_subcommands([&](const CLI::App* app) { return app->get_name() == name; });
    AddNames(command, known.empty() ? to->add_subcommand(name) : known.front());
  }
}

std::string VersionText() {
  return absl::StrCat("quintet ", Version(), " (", Commit(), ")\nCUDA: ", CudaBuild(),
                      "\nCPU instruction sets: ", CompiledIsaNames(),
                      "\nUsed on this CPU: ", UsedIsaNames());
}

}  // namespace

CommandLine::CommandLine() : app_("Quintet: inference for T5-family models and GPT-2.", "quintet") {
  app_.formatter(std::make_shared<HelpFormatter>());
  app_.option_defaults()->always_capture_default();
  app_.set_help_flag("-h,--help", "Show this help.");
  app_.set_version_flag("--version", VersionText,
                        "Show version, commit, CUDA version and instruction sets.");
  app_.require_subcommand(0, 1);
  app_.allow_extras();  // so that ReportUnknown can suggest a name
  app_.footer(
      "quintet SUBCOMMAND --help, or quintet help SUBCOMMAND, shows the flags of one subcommand; "
      "they come\nafter its name.\n"
      "A flag --some-flag may also be set by the variable QUINTET_SOME_FLAG or in a --config "
      "file;\n"
      "precedence: flag, variable, file, default.\n\n"
      "Exit codes:\n"
      "  0  done\n"
      "  1  something failed: a line, the output, memory\n"
      "  2  usage or configuration: flags, variables, files, an unavailable device or address\n"
      "  3  model or tokenizer rejected\n"
      "  4  a remote call failed\n"
      "  70  an accelerator or engine of serve failed or stalled\n"
      "  130  interrupted");
}

CLI::App* CommandLine::AddCommand(const CommandText& text, std::function<int()> run) {
  CLI::App* parent = &app_;
  const std::pair<std::string, std::string> path =
      absl::StrSplit(text.name, absl::MaxSplits(' ', 1));
  if (!path.second.empty()) parent = app_.get_subcommand(path.first);
  CLI::App* command =
      parent->add_subcommand(path.second.empty() ? path.first : path.second, text.description);
  command->set_help_flag("-h,--help", "Show this help.");
  command->allow_extras();
  command->footer(
      absl::StrCat(text.details, text.details.empty() ? "" : "\n\n", "Example:\n  ", text.example));
  commands_[command].run = std::move(run);
  return command;
}

// Adds the flags that all subcommands have (--config, --log-level, ...). Must be called last,
// because --help shows flags in the order in which they were added.
void CommandLine::AddCommonFlags(CLI::App* command, Common* common) {
  command->add_option("--config", common->config, "TOML file with flag values.")
      ->type_name("FILE")
      ->group("Common");
  command
      ->add_flag("--print-config", common->print_config,
                 "Print the resolved flag values as a --config file and exit.")
      ->group("Common");
  command
      ->add_option("--log-format", common->log_format,
                   "Log format on standard error: text or json.")
      ->check(CLI::IsMember({"text", "json"}))
      ->type_name("FORMAT")
      ->group("Common");
  command
      ->add_option("--log-level", common->log_level,
                   "Minimum log level: debug, info, warn or error.")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->type_name("LEVEL")
      ->group("Common");
}

int CommandLine::Run(int argc, char** argv) {
  argc_ = argc;
  argv_ = argv;
  for (CLI::App* command : AllCommands(&app_)) AddCommonFlags(command, &commands_[command]);
  if (argc > 1 && std::string(argv[1]) == "help") return ShowHelp({argv + 2, argv + argc});
  try {
    app_.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app_.exit(success);
  } catch (const CLI::Error& error) {
    return Fail(kExitUsage, absl::InvalidArgumentError(FlagErrorMessage(error)));
  }
  CLI::App* chosen = &app_;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  const std::vector<std::string> unknown = app_.remaining(true);
  if (!unknown.empty()) return ReportUnknown(chosen, unknown.front());
  if (chosen == &app_) {
    std::fputs(app_.help().c_str(), stderr);
    return kExitUsage;
  }
  return RunParsed(chosen);
}

absl::Status CommandLine::ResolveAgain(const CommandLine& first) {
  for (CLI::App* command : AllCommands(&app_)) AddCommonFlags(command, &commands_[command]);
  AddNames(&first.app_, &app_);
  try {
    app_.parse(first.argc_, first.argv_);
  } catch (const CLI::Error& error) {
    return absl::InvalidArgumentError(FlagErrorMessage(error));
  }
  CLI::App* chosen = &app_;
  while (!chosen->get_subcommands().empty()) chosen = chosen->get_subcommands().front();
  QT_RETURN_IF_ERROR(Resolve(chosen, &commands_[chosen]));
  return CheckRequired(chosen);
}

int CommandLine::ShowHelp(const std::vector<std::string>& path) {
  CLI::App* command = &app_;
  std::string parents;
  for (const std::string& name : path) {
    if (name == "-h" || name == "--help" || (name == "help" && command == &app_)) continue;
    const std::vector<CLI::App*> below =
        command->get_subcommands([&](CLI::App* app) { return app->get_name() == name; });
    if (below.empty()) return ReportUnknown(command, name);
    absl::StrAppend(&parents, parents.empty() ? "" : " ", command->get_name());
    command = below.front();
  }
  std::fputs(command->help(parents).c_str(), stdout);
  return kExitDone;
}

int CommandLine::ReportUnknown(CLI::App* command, const std::string& word) {
  const bool is_flag = word.size() > 1 && word[0] == '-';
  const bool at_top = command == &app_;
  std::vector<std::string> candidates;
  if (is_flag) {
    candidates = FlagNames(*command);
  } else {
    for (const CLI::App* known : command->get_subcommands({})) {
      candidates.push_back(known->get_name());
    }
  }
  const std::string name = is_flag ? word.substr(0, word.find('=')) : word;
  if (is_flag) {  // a flag of a subcommand, before its name
    for (CLI::App* known : AllCommands(at_top ? &app_ : command->get_parent())) {
      const std::vector<std::string> flags = FlagNames(*known);
      if ((!at_top && known != command) ||
          std::find(flags.begin(), flags.end(), name) == flags.end()) {
        continue;
      }
      return Fail(kExitUsage, absl::InvalidArgumentError(absl::StrCat(
                                  name, ": flags come after the subcommand, for example: quintet ",
                                  CommandPath(*known, " "), " ", name, " ...")));
    }
  }
  const std::string nearest = Nearest(name, candidates);
  const std::string kind = is_flag  ? "unknown flag "
                           : at_top ? "unknown subcommand "
                                    : "unexpected argument ";
  const CLI::Option* const model = at_top ? nullptr : command->get_option_no_throw("--model");
  const std::string hint =
      !nearest.empty() ? absl::StrCat(". Did you mean ", nearest, "?")
      : !is_flag && model != nullptr && !model->get_positional()
          ? ". The model is given as --model MODEL"
          : absl::StrCat(". See quintet ", at_top ? "" : CommandPath(*command, " ") + " ",
                         "--help");
  return Fail(kExitUsage, absl::InvalidArgumentError(absl::StrCat(kind, name, hint)));
}

absl::Status CommandLine::Resolve(CLI::App* command, Common* common) {
  QT_RETURN_IF_ERROR(ApplyEnvironment(command));
  if (common->config.empty()) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(std::vector<ModelSection> sections, ApplyConfigFile(command, common->config));
  if (common->take_sections == nullptr) return absl::OkStatus();
  common->sections = std::move(sections);
  return common->take_sections(common->sections);
}

absl::Status CommandLine::CheckRequired(const CLI::App* command) const {
  for (const CLI::Option* option : required_) {
    const std::vector<const CLI::Option*> own = command->get_options();
    if (std::find(own.begin(), own.end(), option) == own.end() || option->count() > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(CommandPath(*command, " "), ": ", option->get_name(), " is required"));
  }
  return absl::OkStatus();
}

int CommandLine::RunParsed(CLI::App* command) {
  Common& common = commands_[command];
  if (absl::Status status = Resolve(command, &common); !status.ok()) {
    return Fail(kExitUsage, status);
  }
  if (common.print_config) {
    std::fputs(PrintConfig(*command).c_str(), stdout);
    std::fputs(PrintModelSections(common.sections).c_str(), stdout);
    const std::string note = common.note ? common.note() : "";
    if (!note.empty()) std::fprintf(stdout, "# %s\n", note.c_str());
    return kExitDone;
  }
  if (absl::Status status = CheckRequired(command); !status.ok()) return Fail(kExitUsage, status);
  if (absl::Status isa = CheckIsaVariable(); !isa.ok()) return Fail(kExitUsage, isa);
  SetUpLogging(common.log_format, common.log_level);
  for (const std::string& misspelt : MisspeltVariables(&app_)) spdlog::warn("{}", misspelt);
  return common.run();
}

}  // namespace quintet
