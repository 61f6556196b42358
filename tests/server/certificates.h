// Certificates for TLS tests: certificate authorities (CAs), and the certificates that they issue
// for loopback names.
#pragma once

#include <memory>
#include <string>

#include "openssl/evp.h"
#include "openssl/x509.h"

namespace quintet {

struct Certificate {
  std::string certificate_pem, key_pem;
};

class Authority {
 public:
  explicit Authority(const std::string& name);

  const std::string& certificate_pem() const { return pem_; }
  // Issues a certificate that is valid from a day ago until `hours` from now. If `hours` is
  // negative, the certificate has expired.
  Certificate Issue(const std::string& name, int hours) const;

 private:
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
  std::unique_ptr<X509, decltype(&X509_free)> certificate_;
  std::string pem_;
};

}  // namespace quintet
