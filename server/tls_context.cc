#include "server/tls_context.h"

#include <cstring>
#include <utility>

#include "kernels/base/status_macros.h"
#include "openssl/err.h"
#include "openssl/ssl.h"

namespace quintet {
namespace {

// Selects HTTP/1.1 among the protocols that the client offers (ALPN). If the client offers only
// other protocols, such as h2, the handshake fails.
int SelectHttp11(SSL*, const unsigned char** out, unsigned char* out_size,
                 const unsigned char* offered, unsigned offered_size, void*) {
  constexpr char kProtocol[] = "http/1.1";
  constexpr unsigned kSize = sizeof(kProtocol) - 1;
  for (unsigned at = 0; at < offered_size; at += 1 + offered[at]) {
    if (at + 1 + offered[at] > offered_size) break;
    if (offered[at] == kSize && std::memcmp(offered + at + 1, kProtocol, kSize) == 0) {
      *out = offered + at + 1;
      *out_size = static_cast<unsigned char>(kSize);
      return SSL_TLSEXT_ERR_OK;
    }
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

bool UseClientCa(SSL_CTX* context, const char* path) {
  STACK_OF(X509_NAME)* const names = SSL_load_client_CA_file(path);
  if (names == nullptr) return false;
  SSL_CTX_set_client_CA_list(context, names);  // takes ownership
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return SSL_CTX_load_verify_locations(context, path, nullptr) == 1;
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeContext(const CertificateFiles::Paths& paths) {
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  SSL_CTX* const raw = context.get();
  if (raw == nullptr) return absl::ResourceExhaustedError("TLS: no memory");
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // A resumed TLS session would not present the client's certificate again.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
  SSL_CTX_set_alpn_select_cb(raw, SelectHttp11, nullptr);
  const bool used = SSL_CTX_use_certificate_chain_file(raw, paths.cert.c_str()) == 1 &&
                    SSL_CTX_use_PrivateKey_file(raw, paths.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
                    SSL_CTX_check_private_key(raw) == 1 &&
                    (paths.client_ca.empty() || UseClientCa(raw, paths.client_ca.c_str()));
  ERR_clear_error();
  if (used) return context;
  return absl::InvalidArgumentError(
      "--tls-cert, --tls-key, --tls-client-ca: OpenSSL does not accept them for --http-api-listen");
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Create(const CertificateFiles* files) {
  std::unique_ptr<TlsContext> context(new TlsContext(files));
  QT_RETURN_IF_ERROR(context->Refresh());
  return context;
}

std::shared_ptr<ssl_ctx_st> TlsContext::current() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return context_;
}

absl::Status TlsContext::Refresh() {
  const uint64_t version = files_->version();
  if (version == version_) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(std::shared_ptr<ssl_ctx_st> made, MakeContext(files_->copies()));
  version_ = version;
  std::lock_guard<std::mutex> lock(mutex_);
  context_ = std::move(made);
  return absl::OkStatus();
}

}  // namespace quintet
