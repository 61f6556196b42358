// Credentials of the gRPC listener: TLS if the options name certificate files, otherwise plaintext.
// Plaintext on an address that is not loopback is an error unless --allow-plaintext is given.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "server/certificate_files.h"
#include "server/server.h"

namespace quintet {

// Opens the TLS files that the options name; returns null for plaintext. The returned object must
// outlive the gRPC server that uses the credentials. Returns INVALID_ARGUMENT if an address is
// invalid, a file is unusable, or an address that is not loopback has no TLS files.
// --allow-plaintext permits the last case for gRPC and the HTTP API, but not for administration.
absl::StatusOr<std::unique_ptr<CertificateFiles>> OpenCertificates(const ServerOptions& options);

// Returns TLS credentials (TLS 1.2 or newer) for `files`, or plaintext credentials if `files` is
// null. With a client CA, clients must present a certificate that this CA has signed. Changed files
// take effect within seconds.
std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const CertificateFiles* files);

}  // namespace quintet
