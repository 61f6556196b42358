#include "server/certificate_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "openssl/err.h"
#include "openssl/pem.h"
#include "openssl/x509.h"

namespace quintet {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::Status InvalidFile(const char* flag, const std::string& path, const std::string& what) {
  ERR_clear_error();  // empties the error queue of OpenSSL
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, ": ", what));
}

absl::StatusOr<std::string> ReadText(const char* flag, const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();  // reads nothing from a directory; an iterator would throw
  if (file.is_open() && !text.str().empty()) return text.str();
  const std::string why =
      access(path.c_str(), R_OK) == 0 ? "not a file, or empty" : strerror(errno);
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path, ": ", why));
}

Bio Memory(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
}

// Password callback for encrypted PEM files: returns an empty password instead of prompting.
int NoPassword(char*, int, int, void*) { return 0; }

// Returns the first certificate of a PEM file. Null if the file has no certificate or an invalid
// one.
Certificate FirstCertificate(const std::string& text) {
  const Bio bio = Memory(text);
  const auto next = [&] {
    return Certificate(PEM_read_bio_X509_AUX(bio.get(), nullptr, NoPassword, nullptr), X509_free);
  };
  Certificate first = next();
  while (next() != nullptr) {
  }
  const bool to_the_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  return to_the_end ? std::move(first) : Certificate(nullptr, X509_free);
}

// Writes `text` to a new memfd and atomically makes `fd` refer to this memfd. A concurrent reader
// of `fd` therefore sees either the old or the new file, never a part of each.
absl::Status Replace(const std::string& text, int* fd) {
  const int made = memfd_create("quintet-tls", MFD_CLOEXEC);
  if (made < 0) return absl::InternalError(absl::StrCat("memfd_create: ", std::strerror(errno)));
  const bool written = write(made, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (*fd < 0 && written) {
    *fd = made;
    return absl::OkStatus();
  }
  const bool moved = written && dup3(made, *fd, O_CLOEXEC) >= 0;
  close(made);
  return moved ? absl::OkStatus() : absl::InternalError("certificates could not be copied");
}

std::string DescriptorPath(int fd) { return fd < 0 ? "" : absl::StrCat("/proc/self/fd/", fd); }

}  // namespace

absl::StatusOr<std::unique_ptr<CertificateFiles>> CertificateFiles::Open(const Paths& paths) {
  std::unique_ptr<CertificateFiles> files(new CertificateFiles(paths));
  QT_RETURN_IF_ERROR(files->Refresh());
  return files;
}

CertificateFiles::~CertificateFiles() {
  for (const int fd : {cert_fd_, key_fd_, client_ca_fd_}) {
    if (fd >= 0) close(fd);
  }
}

absl::StatusOr<CertificateFiles::Texts> CertificateFiles::Read() const {
  constexpr char kCert[] = "--tls-cert", kKey[] = "--tls-key", kClientCa[] = "--tls-client-ca";
  Texts texts;
  QT_ASSIGN_OR_RETURN(texts.cert, ReadText(kCert, paths_.cert));
  const Certificate certificate = FirstCertificate(texts.cert);
  if (certificate == nullptr)
    return InvalidFile(kCert, paths_.cert, "expected certificates in PEM");

  QT_ASSIGN_OR_RETURN(texts.key, ReadText(kKey, paths_.key));
  const Key key(PEM_read_bio_PrivateKey(Memory(texts.key).get(), nullptr, NoPassword, nullptr),
                EVP_PKEY_free);
  if (key == nullptr)
    return InvalidFile(kKey, paths_.key, "expected a private key in PEM, not encrypted");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return InvalidFile(kKey, paths_.key,
                       "expected the key of --tls-cert's certificate, got another's");
  }

  if (paths_.client_ca.empty()) return texts;
  QT_ASSIGN_OR_RETURN(texts.client_ca, ReadText(kClientCa, paths_.client_ca));
  if (FirstCertificate(texts.client_ca) == nullptr) {
    return InvalidFile(kClientCa, paths_.client_ca, "expected certificates in PEM");
  }
  return texts;
}

absl::Status CertificateFiles::Refresh() {
  QT_ASSIGN_OR_RETURN(Texts texts, Read());
  if (texts == texts_) return absl::OkStatus();
  QT_RETURN_IF_ERROR(Replace(texts.cert, &cert_fd_));
  QT_RETURN_IF_ERROR(Replace(texts.key, &key_fd_));
  if (!paths_.client_ca.empty()) {
    QT_RETURN_IF_ERROR(Replace(texts.client_ca, &client_ca_fd_));
  }
  texts_ = std::move(texts);
  ++version_;
  return absl::OkStatus();
}

CertificateFiles::Paths CertificateFiles::copies() const {
  return {DescriptorPath(cert_fd_), DescriptorPath(key_fd_), DescriptorPath(client_ca_fd_)};
}

}  // namespace quintet
