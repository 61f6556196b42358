// What `bench serve` and `bench engine` share: the flags that describe a load, and functions that
// run the load and report its results.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/command_line.h"
#include "tools/load/driver.h"
#include "tools/load/report.h"

namespace quintet {

struct LoadFlags {
  LoadShape shape;
  Pacing pacing;
  std::string prompts_file, input_tokens = "128", output_tokens;
  bool unary = false;
  std::vector<std::string> goodput;
  std::string output = "text", json_file, record_file;
};
void AddLoadFlags(CLI::App* command, LoadFlags* flags);

// Validates the flags, reads the prompts file, and fills flags->shape except for `vocab`, which the
// caller sets from the target's model. Creates the files of --json and --record. Errors are
// INVALID_ARGUMENT and name the flag.
absl::Status ValidateLoad(LoadFlags* flags);

// Runs the load and prints and writes its report, which includes `conditions` and `configuration`.
// ValidateLoad must have checked `flags`. Returns the exit code: kExitRemote if no measured request
// ended with OK.
int RunAndReport(const LoadFlags& flags, LoadTarget* target, nlohmann::ordered_json conditions,
                 nlohmann::ordered_json configuration);

}  // namespace quintet
