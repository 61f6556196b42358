// Values of flags that did not come from argv, and names that were nearly right.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace quintet {

// Checks of numbers where CLI11's own are not enough: its Range lets NaN pass, and its uint64_t
// takes -1 and what is too large.
CLI::Validator InRange(double least, double most);
CLI::Validator WholeNumber();

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
