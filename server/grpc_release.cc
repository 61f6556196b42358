#include "server/grpc_release.h"

#include <array>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "grpcpp/grpcpp.h"
#include "server/address.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

// CVE-2024-7246 is the most recent vulnerability of gRPC that concerns a server. kFixedPatches
// holds, for the minor releases 1.58 to 1.65, the number of the first patch release that fixes it.
// Every release from 1.66 on has the fix; no release before 1.58 has it.
constexpr int kFirstFixedMinor = 58, kFirstMinorFixedAtOnce = 66;
constexpr std::array<int, kFirstMinorFixedAtOnce - kFirstFixedMinor> kFixedPatches = {3, 5, 2, 3,
                                                                                      3, 2, 3, 4};

}  // namespace

bool LacksSecurityFixes(absl::string_view grpc_version) {
  const std::vector<absl::string_view> parts = absl::StrSplit(grpc_version, '.');
  if (parts.size() < 3) return true;
  // "1.70.0-dev", "1.58.0-pre1"
  const absl::string_view patch_digits = parts[2].substr(0, parts[2].find('-'));
  int major = 0, minor = 0, patch = 0;
  if (!absl::SimpleAtoi(parts[0], &major) || !absl::SimpleAtoi(parts[1], &minor) ||
      !absl::SimpleAtoi(patch_digits, &patch)) {
    return true;
  }
  if (major != 1) return major < 1;
  if (minor >= kFirstMinorFixedAtOnce) return false;
  return minor < kFirstFixedMinor || patch < kFixedPatches.at(minor - kFirstFixedMinor);
}

void LogGrpcRelease(const std::string& listen) {
  const std::string version = grpc::Version();
  if (!LacksSecurityFixes(version)) return;
  const absl::StatusOr<Address> address = ParseAddress("--listen", listen);
  const bool local = address.ok() && IsLoopback(*address);
  spdlog::log(local ? spdlog::level::info : spdlog::level::warn,
              "gRPC {} lacks fixes for published vulnerabilities: let untrusted clients connect "
              "through a proxy only, or build with gRPC 1.66 or later (SECURITY.md)",
              version);
}

}  // namespace quintet
