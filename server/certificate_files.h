// The files of TLS, checked before gRPC sees them.
//
// gRPC 1.51 reads its files again when they change, but aborts the process when it finds one empty
// and turns every client away while one cannot be used. So it is given copies in memory, which
// change only to what can be used: a certificate and the private key of it.
#pragma once

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
  // INVALID_ARGUMENT names the flag and the file, and says what it lacks.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Open(const Paths& paths);
  ~CertificateFiles();
  CertificateFiles(const CertificateFiles&) = delete;
  CertificateFiles& operator=(const CertificateFiles&) = delete;

  // Reads the files again and takes up what has changed; of files that cannot be used nothing. OK
  // also when nothing has changed. From one thread at a time.
  absl::Status Refresh();

  // Where gRPC finds the copies, as long as this object lives. The same from Open on.
  Paths copies() const;

 private:
  struct Texts {
    std::string cert, key, client_ca;
    bool operator==(const Texts&) const = default;
  };
  explicit CertificateFiles(const Paths& paths) : paths_(paths) {}
  absl::StatusOr<Texts> Read() const;

  const Paths paths_;
  Texts texts_;
  int cert_fd_ = -1, key_fd_ = -1, client_ca_fd_ = -1;
};

}  // namespace quintet
