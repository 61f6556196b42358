#include "server/credentials.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace quintet {
namespace {

constexpr unsigned kRefreshSeconds = 1;

absl::Status CheckReadable(const char* flag, const std::string& path) {
  if (access(path.c_str(), R_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": cannot read ", path, ": ", std::strerror(errno)));
}

}  // namespace

bool IsLoopback(const std::string& listen) {
  return absl::StartsWith(listen, "127.") || absl::StartsWith(listen, "localhost:") ||
         absl::StartsWith(listen, "[::1]:");
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(
    const ServerOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key: give both or none");
  }
  if (options.tls_cert.empty()) {
    if (!options.tls_client_ca.empty())
      return absl::InvalidArgumentError("--tls-client-ca: needs --tls-cert and --tls-key");
    if (!IsLoopback(options.listen) && !options.allow_plaintext) {
      return absl::InvalidArgumentError(
          "--listen: an address other than loopback needs --tls-cert and --tls-key, or "
          "--allow-plaintext");
    }
    return grpc::InsecureServerCredentials();
  }
  for (const auto& [flag, path] :
       {std::pair{"--tls-cert", options.tls_cert}, std::pair{"--tls-key", options.tls_key}}) {
    if (absl::Status status = CheckReadable(flag, path); !status.ok()) return status;
  }
  using grpc::experimental::FileWatcherCertificateProvider;
  std::shared_ptr<FileWatcherCertificateProvider> provider;
  if (options.tls_client_ca.empty()) {
    provider = std::make_shared<FileWatcherCertificateProvider>(options.tls_key, options.tls_cert,
                                                                kRefreshSeconds);
  } else {
    if (absl::Status status = CheckReadable("--tls-client-ca", options.tls_client_ca); !status.ok())
      return status;
    provider = std::make_shared<FileWatcherCertificateProvider>(
        options.tls_key, options.tls_cert, options.tls_client_ca, kRefreshSeconds);
  }
  grpc::experimental::TlsServerCredentialsOptions tls(provider);
  tls.watch_identity_key_cert_pairs();
  if (options.tls_client_ca.empty()) {
    tls.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  } else {
    tls.watch_root_certs();
    tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(tls);
}

}  // namespace quintet
