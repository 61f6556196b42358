// Values of flags: validators, environment variables, config files, and suggestions for misspelt
// names.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace quintet {

// Validators of numeric flags, run before CLI11 converts the text. Ranges are inclusive. CLI11's
// own validators accept NaN, accept -1 as a uint64_t, and do not say what was expected.
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
// Accepts "auto" and whole numbers from `least` (above 0) to `most`.
CLI::Validator AutoOrInRange(uint64_t least, uint64_t most);
// Accepts any value >= 0 if T is an integer type, and any real number if T is a floating-point
// type. For flags whose range is checked elsewhere.
template <typename T>
CLI::Validator NumberOf() {
  if constexpr (std::is_integral_v<T>) {
    return InRange(T{0}, std::numeric_limits<T>::max());
  } else {
    return AnyReal();
  }
}

// Returns the message of a CLI11 error, rewritten to say what was expected and got.
std::string FlagErrorMessage(const CLI::Error& error);

// Returns the name of the environment variable of a flag: "QUINTET_NUM_BEAMS" for --num-beams.
// Empty for positionals and for flags that can only be given on the command line (--help,
// --version, --print-config).
std::string VariableName(const CLI::Option& option);

// Sets every flag of `command` that has no value yet from its environment variable.
// INVALID_ARGUMENT names the variable.
absl::Status ApplyEnvironment(CLI::App* command);

// One sentence for every environment variable that looks like a misspelt one of a flag of any
// subcommand below `root`, or of those that are not flags: QUINTET_NUM_BEANS.
std::vector<std::string> MisspeltVariables(CLI::App* root);

// Sets every flag of `command` that has no value yet from a TOML file. INVALID_ARGUMENT for an
// unreadable file, an unknown section or key, or a bad value; the message names the file and the
// key.
absl::Status ApplyConfigFile(CLI::App* command, const std::string& path);

// Returns all flag values of `command` as the text of a file that --config accepts. Flags that are
// not set appear as comments with their defaults.
std::string PrintConfig(const CLI::App& command);

// Levenshtein distance: insertions, deletions and replacements that turn a into b.
int EditDistance(const std::string& a, const std::string& b);
// Returns the candidate with the smallest edit distance to `word`, for suggestions. Empty if that
// distance exceeds 2 (1 for words of up to three letters).
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates);
// All subcommands below `root`, recursively, in the order of registration.
std::vector<CLI::App*> AllCommands(CLI::App* root);
// Returns the name of a command after those of its parents: "bench serve" for separator " ",
// "bench.serve" for ".".
std::string CommandPath(const CLI::App& command, const std::string& separator);
// All flag names of one command, aliases included: "--num-beams", ...
std::vector<std::string> FlagNames(const CLI::App& command);

}  // namespace quintet
