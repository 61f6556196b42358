// Limits and settings of gRPC's transport that all gRPC listeners share.
#pragma once

#include "grpcpp/grpcpp.h"
#include "server/server.h"

namespace quintet {

void SetTransportLimits(const ServerOptions& options, grpc::ServerBuilder* builder);

}  // namespace quintet
