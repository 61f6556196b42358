// How gRPC listens: plaintext on loopback, TLS elsewhere.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "server/server.h"

namespace quintet {

// Whether host:port is on this machine only.
bool IsLoopback(const std::string& listen);

// TLS 1.2 or newer when a certificate is given (with a client CA: clients must show a certificate
// of it), files read again when they change; else plaintext. INVALID_ARGUMENT for a plaintext
// address that is not loopback without --allow-plaintext, and for certificates that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(
    const ServerOptions& options);

}  // namespace quintet
