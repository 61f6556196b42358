// TLS certificate and key files, validated before gRPC and the HTTP API read them.
//
// gRPC 1.51 re-reads the certificate and key files when they change, but it aborts the process if a
// file is empty, and rejects every client while a file is invalid. Therefore gRPC gets copies in
// memory (memfd). A copy is replaced only by a valid pair of a certificate and its private key.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace quintet {

class CertificateFiles {
 public:
  struct Paths {
    std::string cert, key;
    std::string client_ca;  // empty: none
  };
  // Reads and checks the files. Returns INVALID_ARGUMENT if a file is unusable; the message names
  // the flag, the file and what was expected.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Open(const Paths& paths);
  ~CertificateFiles();
  CertificateFiles(const CertificateFiles&) = delete;
  CertificateFiles& operator=(const CertificateFiles&) = delete;

  // Re-reads the files and updates the copies if the files have changed and all of them are valid.
  // Returns an error for invalid files, which leave the copies as they were. Not thread-safe.
  absl::Status Refresh();

  // Paths of the in-memory copies of the files (/proc/self/fd/N). The paths are constant and valid
  // while this object exists.
  Paths copies() const;
  // How often the files' in-memory copies were written: 1 after Open. Not thread-safe with Refresh.
  uint64_t version() const { return version_; }

 private:
  struct Texts {
    std::string cert, key, client_ca;
    bool operator==(const Texts&) const = default;
  };
  explicit CertificateFiles(const Paths& paths) : paths_(paths) {}
  absl::StatusOr<Texts> Read() const;

  const Paths paths_;
  Texts texts_;
  uint64_t version_ = 0;
  int cert_fd_ = -1, key_fd_ = -1, client_ca_fd_ = -1;
};

}  // namespace quintet
