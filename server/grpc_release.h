// Checks whether the linked gRPC library has the fixes for its published vulnerabilities, which
// SECURITY.md lists.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace quintet {

// Returns true if the gRPC release, for example "1.51.1", lacks one of the security fixes. Also
// returns true for a text that is not a version number.
bool LacksSecurityFixes(absl::string_view grpc_version);

// Writes a log line if the linked gRPC lacks a fix of a published vulnerability
// (LacksSecurityFixes). The level is info if `listen` (HOST:PORT) is a loopback address, otherwise
// warning.
void LogGrpcRelease(const std::string& listen);

}  // namespace quintet
