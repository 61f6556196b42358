// Tests of TLS: which clients the server accepts, and that new certificate files take effect
// without ending the streams in progress.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/server/calls.h"
#include "tests/server/certificates.h"
#include "tests/server/running_server.h"
#include "tests/server/stub_model.h"

namespace quintet {
namespace {

class TlsFiles {
 public:
  void Write(const Certificate& server, const std::string& client_authority) {
    Replace(key(), server.key_pem);
    Replace(certificate(), server.certificate_pem);
    Replace(authority(), client_authority);
  }
  std::string certificate() const { return directory_ / "server.pem"; }
  std::string key() const { return directory_ / "server.key"; }
  std::string authority() const { return directory_ / "clients.pem"; }
  void Use(ServerOptions* options) const {
    options->tls_cert = certificate();
    options->tls_key = key();
    options->tls_client_ca = authority();
  }

 private:
  void Replace(const std::string& path, const std::string& text) {
    WriteText(path + ".new", text);
    std::filesystem::rename(path + ".new", path);
  }
  ScratchDirectory directory_;
};

// Creates a client with a connection of its own, which it shares with no other client.
std::unique_ptr<v1::Inference::Stub> Connect(const RunningServer& server, const std::string& roots,
                                             const Certificate& certificate) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto credentials =
      grpc::SslCredentials({roots, certificate.key_pem, certificate.certificate_pem});
  return v1::Inference::NewStub(
      grpc::CreateCustomChannel(server.options().listen, credentials, arguments));
}

TEST_CASE("mTLS accepts only clients with a certificate of the CA", "[tls]") {
  const Authority servers("servers"), clients("clients"), strangers("strangers");
  TlsFiles files;
  files.Write(servers.Issue("server", 24), clients.certificate_pem());
  RunningServer server([&](ServerOptions* options) { files.Use(options); });
  const auto call = [&](const std::string& roots, const Certificate& certificate) {
    return Generate(*Connect(server, roots, certificate), Word("wagner")).error_code();
  };
  const std::string& roots = servers.certificate_pem();
  CHECK(call(roots, clients.Issue("client", 24)) == grpc::StatusCode::OK);
  CHECK(call(roots, {}) == grpc::StatusCode::UNAVAILABLE);
  CHECK(call(roots, strangers.Issue("client", 24)) == grpc::StatusCode::UNAVAILABLE);
  CHECK(call(roots, clients.Issue("client", -1)) == grpc::StatusCode::UNAVAILABLE);
  // The client verifies the server: with the root certificate of another CA the client does not
  // connect.
  CHECK(call(strangers.certificate_pem(), clients.Issue("client", 24)) ==
        grpc::StatusCode::UNAVAILABLE);
  CHECK(Generate(server.stub(), Word("wagner")).error_code() ==
        grpc::StatusCode::UNAVAILABLE);  // plaintext
  CHECK(server.Metric("quintet_requests_accepted_total") == 1);
}

TEST_CASE("Unusable certificate files do not replace the current ones", "[tls]") {
  const Authority authority("authority");
  const Certificate server_certificate = authority.Issue("server", 24);
  const Certificate client = authority.Issue("client", 24);
  TlsFiles files;
  files.Write(server_certificate, authority.certificate_pem());
  RunningServer server([&](ServerOptions* options) { files.Use(options); });
  for (const Certificate& bad : {Certificate{"", ""}, Certificate{"no PEM", "no PEM"},
                                 Certificate{server_certificate.certificate_pem, client.key_pem}}) {
    files.Write(bad, "");
    std::this_thread::sleep_for(std::chrono::milliseconds(2500));  // files are re-read every second
    CHECK(Generate(*Connect(server, authority.certificate_pem(), client), Word("wagner")).ok());
  }
  CHECK(server.Stop() == 0);
}

TEST_CASE("New certificates take effect while streams continue", "[tls]") {
  const Authority before("before"), after("after"), clients("clients"), new_clients("new clients");
  TlsFiles files;
  files.Write(before.Issue("server", 24), clients.certificate_pem());
  auto control = std::make_shared<StubControl>();
  control->step_us = 5000;
  RunningServer server([&](ServerOptions* options) {
    files.Use(options);
    UseStub(&options->models[0], control);
    options->models[0].limits.cache_bytes = int64_t{1} << 30;  // all streams fit at the same time
  });
  const Certificate old_client = clients.Issue("client", 24);
  const auto old_stub = Connect(server, before.certificate_pem(), old_client);
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateStreamResponse>> reader;
  };
  std::vector<Stream> streams(4);
  v1::GenerateStreamResponse message;
  for (Stream& stream : streams) {
    stream.reader = old_stub->GenerateStream(&stream.context, Endless(4000));
    REQUIRE(stream.reader->Read(&message));
  }

  files.Write(after.Issue("server", 24), new_clients.certificate_pem());
  const Certificate new_client = new_clients.Issue("client", 24);
  CHECK(Eventually([&] {
    return Generate(*Connect(server, after.certificate_pem(), new_client), Endless(1)).ok();
  }));
  CHECK(Generate(*Connect(server, before.certificate_pem(), old_client), Endless(1)).error_code() ==
        grpc::StatusCode::UNAVAILABLE);
  CHECK(server.Metric("quintet_requests_running") == 4);
  control->step_us = 0;
  for (Stream& stream : streams) {
    bool complete = false;
    while (stream.reader->Read(&message)) complete = complete || message.has_complete();
    CHECK(complete);
    CHECK(stream.reader->Finish().ok());
  }
}

}  // namespace
}  // namespace quintet
