#include "server/certificate_files.h"

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/server/certificates.h"

namespace quintet {
namespace {

// Files that contain a certificate, its private key and the certificate of a CA.
struct Files {
  Files() { WriteText(paths.client_ca, authority.certificate_pem()), Write(good); }
  void Write(const Certificate& certificate) const {
    WriteText(paths.cert, certificate.certificate_pem);
    WriteText(paths.key, certificate.key_pem);
  }

  ScratchDirectory directory;
  Authority authority{"authority"};
  Certificate good = authority.Issue("server", 24), other = authority.Issue("server", 24);
  CertificateFiles::Paths paths{directory / "cert", directory / "key", directory / "ca"};
};

TEST_CASE("Unusable certificate files are rejected with the flag, the file and the reason",
          "[certificates]") {
  const Files files;
  const struct {
    std::string path, text, flag, lack;
  } cases[] = {
      {files.paths.cert, "", "--tls-cert", "empty"},
      {files.paths.cert, "no PEM", "--tls-cert", "expected certificates in PEM"},
      {files.paths.cert, files.good.key_pem, "--tls-cert", "expected certificates in PEM"},
      {files.paths.cert, files.good.certificate_pem + files.good.certificate_pem.substr(0, 200),
       "--tls-cert", "expected certificates in PEM"},
      {files.paths.key, "", "--tls-key", "empty"},
      {files.paths.key, files.good.certificate_pem, "--tls-key", "expected a private key"},
      {files.paths.key, files.other.key_pem, "--tls-key", "got another's"},
      {files.paths.client_ca, "", "--tls-client-ca", "empty"},
      {files.paths.client_ca, "no PEM", "--tls-client-ca", "expected certificates in PEM"},
  };
  for (const auto& c : cases) {
    INFO(c.flag << " " << c.lack);
    const std::string before = ReadText(c.path);
    WriteText(c.path, c.text);
    const absl::Status status = CertificateFiles::Open(files.paths).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StartsWith(status.message(), c.flag));
    CHECK(absl::StrContains(status.message(), c.path));
    CHECK(absl::StrContains(status.message(), c.lack));
    WriteText(c.path, before);
  }
  CertificateFiles::Paths paths = files.paths;
  paths.cert = files.directory / "none";
  CHECK(absl::StrContains(CertificateFiles::Open(paths).status().message(), "No such file"));
  paths.cert = "/tmp";
  CHECK(absl::IsInvalidArgument(CertificateFiles::Open(paths).status()));
}

TEST_CASE("Copies are replaced by usable files only", "[certificates]") {
  const Files files;
  const auto opened = CertificateFiles::Open(files.paths);
  REQUIRE(opened.ok());
  const CertificateFiles::Paths copies = (*opened)->copies();
  const auto holds = [&](const Certificate& certificate) {
    return ReadText(copies.cert) == certificate.certificate_pem &&
           ReadText(copies.key) == certificate.key_pem;
  };
  CHECK(holds(files.good));
  CHECK(ReadText(copies.client_ca) == files.authority.certificate_pem());
  for (const Certificate& bad : {Certificate{"", ""}, Certificate{files.other.certificate_pem, ""},
                                 Certificate{files.good.certificate_pem, files.other.key_pem}}) {
    files.Write(bad);
    CHECK_FALSE((*opened)->Refresh().ok());
    CHECK(holds(files.good));
  }
  files.Write(files.other);
  CHECK((*opened)->Refresh().ok());
  CHECK(holds(files.other));
}

TEST_CASE("Without a client CA there is no copy of one", "[certificates]") {
  const Files files;
  const auto opened = CertificateFiles::Open({files.paths.cert, files.paths.key, ""});
  REQUIRE(opened.ok());
  CHECK((*opened)->copies().client_ca.empty());
}

}  // namespace
}  // namespace quintet
