// The TLS context of the HTTP API: certificate, private key and client CA of CertificateFiles. TLS
// 1.2 or newer.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "server/certificate_files.h"

struct ssl_ctx_st;

namespace quintet {

class TlsContext {
 public:
  // `files` must outlive the context. Returns INVALID_ARGUMENT if OpenSSL rejects the files.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Create(const CertificateFiles* files);

  // The context for a new connection. Thread-safe.
  std::shared_ptr<ssl_ctx_st> current() const;
  // Uses the certificate files for new connections if they have changed since the last Refresh.
  // After an error the previous context stays in use. Must be called by one thread only.
  absl::Status Refresh();

 private:
  explicit TlsContext(const CertificateFiles* files) : files_(files) {}

  const CertificateFiles* const files_;
  uint64_t version_ = 0;  // CertificateFiles::version() of context_
  mutable std::mutex mutex_;
  std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace quintet
