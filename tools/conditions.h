// Conditions of a measurement (version, machine, model), with which every benchmark report begins.
#pragma once

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/session.h"

namespace quintet {

int64_t PeakBytes();  // peak resident memory of this process, in bytes

// Returns {"version", "commit", "cpu", "cores" (available to this process), "system"}.
nlohmann::ordered_json MachineConditions();
// Returns MachineConditions() and the conditions of the session: threads, device, dtype, family,
// parameters, bytes of weights, load time and peak memory.
nlohmann::ordered_json SessionConditions(const Session& session);
// GPU memory in bytes that is used now and was free before the model was loaded; 0 on a CPU.
int64_t DeviceBytes(const Session& session);

// Prints the report when `output` is "json", and writes it to `json_file` unless that is empty.
// Returns the exit code.
int WriteReport(const nlohmann::ordered_json& report, const std::string& output,
                const std::string& json_file);

}  // namespace quintet
