// How gRPC listens: plaintext on loopback, TLS elsewhere.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "server/certificate_files.h"
#include "server/server.h"

namespace quintet {

// The files that the options name, which the credentials read as long as a server has them; null:
// plaintext. INVALID_ARGUMENT for a plaintext address that is not loopback without
// --allow-plaintext, for no address at all, and for files that cannot be used.
absl::StatusOr<std::unique_ptr<CertificateFiles>> OpenCertificates(const ServerOptions& options);

// TLS 1.2 or newer with these files (with a client CA: clients must show a certificate of it),
// taken up within seconds when they change; without: plaintext.
std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const CertificateFiles* files);

}  // namespace quintet
