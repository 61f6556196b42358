#include "tests/server/certificates.h"

#include <atomic>
#include <functional>

#include "openssl/pem.h"
#include "openssl/x509v3.h"
#include "tests/catch.h"

namespace quintet {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using X509Ptr = std::unique_ptr<X509, decltype(&X509_free)>;

constexpr long kHour = 3600;

std::string Pem(const std::function<int(BIO*)>& write) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(BIO_new(BIO_s_mem()), BIO_free);
  REQUIRE(write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

std::string PemOf(X509* certificate) {
  return Pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void AddExtension(X509* certificate, int nid, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
  REQUIRE(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Returns an unsigned certificate.
X509Ptr Blank(const std::string& name, EVP_PKEY* key, int hours) {
  static std::atomic<long> serial{1};
  X509Ptr certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -24 * kHour);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), hours * kHour);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

Authority::Authority(const std::string& name)
    : key_(EVP_EC_gen("P-256"), EVP_PKEY_free), certificate_(Blank(name, key_.get(), 24)) {
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate_.get(), NID_key_usage, "critical,keyCertSign");
  REQUIRE(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
  pem_ = PemOf(certificate_.get());
}

Certificate Authority::Issue(const std::string& name, int hours) const {
  const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const X509Ptr certificate = Blank(name, key.get(), hours);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate.get(), NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
  REQUIRE(X509_sign(certificate.get(), key_.get(), EVP_sha256()) > 0);
  return {PemOf(certificate.get()), Pem([&](BIO* bio) {
            return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr,
                                                 nullptr);
          })};
}

}  // namespace quintet
