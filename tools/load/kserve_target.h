// A load target that calls ModelInfer or ModelStreamInfer of KServe's gRPC protocol
// (server/KSERVE.md).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tools/load/server_target.h"

namespace quintet {

absl::StatusOr<std::unique_ptr<ServerTarget>> ConnectKserve(const ServerTargetOptions& options);

}  // namespace quintet
