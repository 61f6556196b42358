// Limits and settings of gRPC's transport that all gRPC listeners share.
#pragma once

#include <chrono>

#include "grpcpp/grpcpp.h"
#include "server/server.h"

namespace quintet {

// Time that a shutdown grants for sending the last responses.
constexpr std::chrono::milliseconds kFlushTime{100};

void SetTransportLimits(const ServerOptions& options, grpc::ServerBuilder* builder);

}  // namespace quintet
