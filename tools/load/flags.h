// What the benchmarks under load have in common: flags, the run, the report.
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
  std::string output = "text", json_file;
};
void AddLoadFlags(CLI::App* command, LoadFlags* flags);

// Reads and checks what the flags name; `shape.vocab` is left to the target. INVALID_ARGUMENT names
// the flag.
absl::Status SettleLoad(LoadFlags* flags);

// Runs the settled load, prints and writes its report. `conditions` and `configuration` become part
// of it. Returns the exit code: kExitRemote when not one measured request was answered OK.
int RunAndReport(const LoadFlags& flags, LoadTarget* target, nlohmann::ordered_json conditions,
                 nlohmann::ordered_json configuration);

}  // namespace quintet
