// Under which conditions a figure was measured: what every report of a benchmark begins with.
#pragma once

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/session.h"

namespace quintet {

int64_t PeakBytes();  // most memory this process has had resident so far

// {"version", "commit", "cpu", "cores" (this process may use), "system"}
nlohmann::ordered_json MachineConditions();
// The same and the model: dtype, threads, family, parameters, bytes, load time.
nlohmann::ordered_json SessionConditions(const Session& session);
// By how much a GPU's free memory is less than before the model was loaded; 0 on a CPU.
int64_t DeviceBytes(const Session& session);

// Prints the report when `output` is "json", and writes it to `json_file` unless that is empty.
// Returns the exit code.
int WriteReport(const nlohmann::ordered_json& report, const std::string& output,
                const std::string& json_file);

}  // namespace quintet
