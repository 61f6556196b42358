#include "tools/conditions.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/runtime/cores.h"
#include "tools/version.h"

namespace quintet {
namespace {

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "model name"))
      return line.substr(std::min(line.find(':') + 2, line.size()));
  }
  return "unknown";
}

}  // namespace

int64_t PeakBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) << 10;
}

nlohmann::ordered_json MachineConditions() {
  utsname system;
  uname(&system);
  return {{"version", Version()},
          {"commit", Commit()},
          {"cpu", CpuName()},
          {"cores", AvailableCores()},
          {"system", absl::StrCat(system.sysname, " ", system.machine)}};
}

nlohmann::ordered_json SessionConditions(const Session& session) {
  nlohmann::ordered_json conditions = MachineConditions();
  conditions.update(
      {{"threads", session.flags.threads},
       {"device", session.device == nullptr ? "cpu" : session.device->name()},
       {"dtype", WeightTypeName(WeightTypeOf(session.flags.placement, session.config))},
       {"cache_dtype", CacheTypeName(session.flags.placement, session.config)},
       {"family", FamilyName(session.config.family)},
       {"parameters", session.model->parameters()},
       {"weight_bytes", session.model->weight_bytes()},
       {"load_seconds", session.load_seconds},
       {"peak_bytes_after_load", PeakBytes()}});
  return conditions;
}

int64_t DeviceBytes(const Session& session) {
  return session.device == nullptr ? 0 : session.free_bytes_before - session.device->free_bytes();
}

int WriteReport(const nlohmann::ordered_json& report, const std::string& output,
                const std::string& json_file) {
  if (output == "json") absl::PrintF("%s\n", report.dump(2));
  if (json_file.empty()) return kExitDone;
  std::ofstream file(json_file);
  file << report.dump(2) << "\n";
  file.flush();
  if (file.good()) return kExitDone;
  return Fail(kExitFailed, absl::UnavailableError(absl::StrCat("cannot write ", json_file)));
}

}  // namespace quintet
