// Values of flags that did not come from argv, and names that were nearly right.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace quintet {

// Checks of a flag's number before CLI11 converts it; both ends belong to a range. CLI11's own let
// NaN pass, take -1 as a uint64_t, and do not say what was expected.
CLI::Validator WholeInRange(uint64_t least, uint64_t most);
CLI::Validator RealInRange(double least, double most);
CLI::Validator AnyReal();  // NaN and infinities too

template <typename T>
CLI::Validator InRange(T least, T most) {
  if constexpr (std::is_integral_v<T>) {
    return WholeInRange(static_cast<uint64_t>(least), static_cast<uint64_t>(most));
  } else {
    return RealInRange(least, most);
  }
}
// Any T that is not negative, or any real number: for flags whose range is checked elsewhere.
template <typename T>
CLI::Validator NumberOf() {
  if constexpr (std::is_integral_v<T>) {
    return InRange(T{0}, std::numeric_limits<T>::max());
  } else {
    return AnyReal();
  }
}

// CLI11's message, in the words of our own where it does not say what was expected and got.
std::string FlagErrorMessage(const CLI::Error& error);

// "QUINTET_NUM_BEAMS" of --num-beams; empty for positionals and flags that only argv may give
// (--help).
std::string VariableName(const CLI::Option& option);

// Sets every flag of `command` that has no value yet from its environment variable.
// INVALID_ARGUMENT names the variable.
absl::Status ApplyEnvironment(CLI::App* command);

// The same from a TOML file. INVALID_ARGUMENT names the file and the key: unreadable, unknown
// section or key, bad value.
absl::Status ApplyConfigFile(CLI::App* command, const std::string& path);

// All values of `command` as a file that --config accepts; defaults as comments.
std::string PrintConfig(const CLI::App& command);

// Insertions, deletions and replacements that turn a into b.
int EditDistance(const std::string& a, const std::string& b);
// The candidate nearest to `word`, when one is within two edits (one for words of up to three
// letters); else empty.
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates);
// Every subcommand below `root`, those of subcommands included, in the order of registration.
std::vector<CLI::App*> AllCommands(CLI::App* root);
// "bench serve" with a blank between the parts, "bench.serve" with a dot.
std::string CommandPath(const CLI::App& command, const std::string& separator);
// "--num-beams", ... of one command.
std::vector<std::string> FlagNames(const CLI::App& command);

}  // namespace quintet
