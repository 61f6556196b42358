// Values of flags: validators, sources (environment variables and config files), and suggestions
// for misspelt names.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/model_sections.h"

namespace quintet {

// Validators of numeric flags. They check the text before CLI11 converts it. Ranges include both
// ends. CLI11's own validators are not used: they accept NaN, accept -1 for a uint64_t, and do not
// say what was expected.
CLI::Validator WholeInRange(uint64_t least, uint64_t most);
CLI::Validator RealInRange(double least, double most);
CLI::Validator AnyReal();  // including NaN and infinities

template <typename T>
CLI::Validator InRange(T least, T most) {
  if constexpr (std::is_integral_v<T>) {
    return WholeInRange(static_cast<uint64_t>(least), static_cast<uint64_t>(most));
  } else {
    return RealInRange(least, most);
  }
}
// Accepts "auto" and whole numbers from `least` to `most`.
CLI::Validator AutoOrInRange(uint64_t least, uint64_t most);
// For flags whose range is checked elsewhere. Accepts any whole number >= 0 if T is an integer
// type, and any real number if T is a floating-point type.
template <typename T>
CLI::Validator NumberOf() {
  if constexpr (std::is_integral_v<T>) {
    return InRange(T{0}, std::numeric_limits<T>::max());
  } else {
    return AnyReal();
  }
}

// Returns the message of a CLI11 error, rewritten so that it says what was expected and what was
// given.
std::string FlagErrorMessage(const CLI::Error& error);

// Returns the name of a flag's environment variable, for example "QUINTET_NUM_BEAMS" for
// --num-beams. Returns "" for positional arguments and for flags that can only be given on the
// command line (--help, --version, --print-config).
std::string VariableName(const CLI::Option& option);
// Returns the default of the flag as text. An empty list is "[]" (CLI11 2.4 writes "{}" or "[{}]").
std::string DefaultText(const CLI::Option& option);

// Reads environment variables: sets every flag of `command` that has no value yet and whose
// variable exists. Errors are INVALID_ARGUMENT and name the variable.
absl::Status ApplyEnvironment(CLI::App* command);

// Returns a warning for each environment variable with an unknown name that resembles a known name,
// such as QUINTET_NUM_BEANS, or differs from it only in case. Known are the variables of the flags
// of all subcommands below `root`, and some variables that belong to no flag.
std::vector<std::string> MisspeltVariables(CLI::App* root);

// Sets a flag to `values` after the same checks as on the command line. A boolean flag takes true
// or false. The message of an INVALID_ARGUMENT begins with `where`, the place of the values in a
// file or the name of a variable.
absl::Status SetFlag(CLI::Option* option, std::vector<std::string> values,
                     const std::string& where);

// Reads a TOML file and sets every flag of `command` that has no value yet. Returns the sections
// [models.NAME] of the file. A setting in them is marked `overridden` if its flag already had a
// value, from the command line or the environment. INVALID_ARGUMENT for an unreadable file, an
// unknown section or key, or a bad value; the message names the file and the key.
absl::StatusOr<std::vector<ModelSection>> ApplyConfigFile(CLI::App* command,
                                                          const std::string& path);

// Returns the values of all flags of `command` in the format of a --config file. A flag that is not
// set appears as a comment with its default.
std::string PrintConfig(const CLI::App& command);

// Returns the smallest number of insertions, deletions and replacements of characters, and swaps of
// two neighbouring characters, that turn a into b (optimal string alignment).
int EditDistance(const std::string& a, const std::string& b);
// Returns the candidate with the smallest edit distance to `word`, to suggest it. If several have
// this distance, returns the one whose length is closest to that of `word`. Returns "" if the
// smallest distance exceeds 2 (1 if `word` has at most four characters).
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates);
// Returns all subcommands below `root`, including subcommands of subcommands, in the order of
// registration.
std::vector<CLI::App*> AllCommands(CLI::App* root);
// Returns the name of a command with the names of its parent commands before it: "bench serve" with
// separator " ", "bench.serve" with ".".
std::string CommandPath(const CLI::App& command, const std::string& separator);
// Returns all flag names of one command, including aliases: "--num-beams", ...
std::vector<std::string> FlagNames(const CLI::App& command);

}  // namespace quintet
