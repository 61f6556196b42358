// The conditions of a measurement (version, machine, model). Every benchmark report begins with
// them.
#pragma once

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/session.h"

namespace quintet {

int64_t PeakBytes();  // peak resident memory of this process, in bytes

// Returns {"version", "commit", "cpu", "cores", "system"}; "cores" is the number of cores that this
// process may use.
nlohmann::ordered_json MachineConditions();
// Returns MachineConditions() together with the conditions of the session: threads, device, dtype,
// family, parameters, bytes of weights, load time and peak memory.
nlohmann::ordered_json SessionConditions(const Session& session);
// Returns by how many bytes the free GPU memory has shrunk since just before the model was loaded.
// Returns 0 on a CPU.
int64_t DeviceBytes(const Session& session);

// Prints the report if `output` is "json". Whatever `output` is, writes the report to `json_file`
// unless that is empty. Returns the exit code.
int WriteReport(const nlohmann::ordered_json& report, const std::string& output,
                const std::string& json_file);

}  // namespace quintet
