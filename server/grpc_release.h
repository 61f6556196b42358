// Whether the gRPC library that is linked has the fixes for its published vulnerabilities
// (SECURITY.md lists them).
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace quintet {

// Whether a release of gRPC, such as "1.51.1", lacks one of the fixes. True for text that is no
// version.
bool LacksSecurityFixes(absl::string_view grpc_version);

// Logs that the linked gRPC lacks fixes, if it does: as a warning, unless `listen` (HOST:PORT) is a
// loopback address.
void LogGrpcRelease(const std::string& listen);

}  // namespace quintet
