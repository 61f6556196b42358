// Load generator target: POST /v1/completions of the HTTP API (server/HTTP.md), with server-sent
// events or whole responses. Each request in flight has a connection, which later requests reuse.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/load/server_target.h"

namespace quintet {

// Returns the outcome of a request (RequestEnd) whose response has this status and JSON body.
// `retry`: whether the response has a Retry-After header.
RequestEnd HttpEnd(int status, const std::string& body, bool retry);

absl::StatusOr<std::unique_ptr<ServerTarget>> ConnectHttp(const ServerTargetOptions& options);

}  // namespace quintet
