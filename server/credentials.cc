#include "server/credentials.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "kernels/base/status_macros.h"
#include "server/address.h"

namespace quintet {
namespace {

constexpr unsigned kRefreshSeconds = 1;
constexpr char kAdminListen[] = "--admin-listen";

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateFiles>> OpenCertificates(const ServerOptions& options) {
  std::vector<std::pair<const char*, Address>> addresses;
  for (const auto& [flag, text] : {std::pair("--listen", &options.listen),
                                   std::pair("--http-api-listen", &options.http_api_listen),
                                   std::pair(kAdminListen, &options.admin_listen)}) {
    if (text->empty()) continue;
    QT_ASSIGN_OR_RETURN(Address address, ParseAddress(flag, *text));
    addresses.emplace_back(flag, std::move(address));
  }
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key: give both or none");
  }
  if (!options.tls_cert.empty()) {
    return CertificateFiles::Open({options.tls_cert, options.tls_key, options.tls_client_ca});
  }
  if (!options.tls_client_ca.empty()) {
    return absl::InvalidArgumentError("--tls-client-ca: needs --tls-cert and --tls-key");
  }
  for (const auto& [flag, address] : addresses) {
    if (IsLoopback(address)) continue;
    if (flag == kAdminListen) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, ": an address other than loopback needs --tls-cert and --tls-key"));
    }
    if (options.allow_plaintext) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag,
                     ": an address other than loopback needs --tls-cert and --tls-key, or "
                     "--allow-plaintext"));
  }
  return nullptr;
}

std::shared_ptr<grpc::ServerCredentials> MakeCredentials(const CertificateFiles* files) {
  if (files == nullptr) return grpc::InsecureServerCredentials();
  using grpc::experimental::FileWatcherCertificateProvider;
  const CertificateFiles::Paths copies = files->copies();
  const bool clients_show_one = !copies.client_ca.empty();
  const auto provider = clients_show_one
                            ? std::make_shared<FileWatcherCertificateProvider>(
                                  copies.key, copies.cert, copies.client_ca, kRefreshSeconds)
                            : std::make_shared<FileWatcherCertificateProvider>(
                                  copies.key, copies.cert, kRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions tls(provider);
  tls.watch_identity_key_cert_pairs();
  if (clients_show_one) {
    tls.watch_root_certs();
    tls.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  } else {
    tls.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  }
  return grpc::experimental::TlsServerCredentials(tls);
}

}  // namespace quintet
