#include "server/http_post_client.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "openssl/ssl.h"
#include "server/tls_context.h"
#include "tests/catch.h"
#include "tests/models/scratch_directory.h"
#include "tests/server/certificates.h"
#include "tests/server/collector.h"

namespace quintet {
namespace {

using std::chrono::milliseconds;

absl::StatusOr<HttpPostClient::Response> PostTo(const HttpUrl& url, const std::string& body,
                                                const std::string& ca_file = "") {
  HttpPostClient::Options options;
  options.url = url;
  options.ca_file = ca_file;
  auto client = HttpPostClient::Create(std::move(options));
  REQUIRE(client.ok());
  const std::atomic<bool> stop{false};
  return (*client)->Post({{"X-One", "1"}}, body, milliseconds(30'000), stop);
}

TEST_CASE("A POST sends a body of megabytes and returns the response", "[http_post]") {
  Collector collector([](size_t) {
    HttpResponse response = PlainText(429, "later");
    response.headers = "Retry-After: 7\r\n";
    return response;
  });
  const std::string body(8 << 20, 'x');
  const auto response = PostTo(collector.url(), body);
  REQUIRE(response.ok());
  CHECK(response->status == 429);
  CHECK(response->retry_after == "7");
  CHECK(response->body == "later");
  REQUIRE(collector.requests().size() == 1);
  CHECK(collector.requests()[0].body == body);
  CHECK(collector.requests()[0].Header("x-one") == "1");
}

// A server that sends `response` to its first connection, whatever that sends, and closes it.
class RawServer {
 public:
  explicit RawServer(std::string response) : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(listener_, raw, size) == 0);
    REQUIRE(listen(listener_, 1) == 0);
    REQUIRE(getsockname(listener_, raw, &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, response = std::move(response)] {
      const int fd = accept(listener_, nullptr, nullptr);
      char buffer[4096];
      (void)!recv(fd, buffer, sizeof(buffer), 0);
      size_t sent = 0;
      while (sent < response.size()) {
        const ssize_t put = send(fd, response.data() + sent, response.size() - sent, MSG_NOSIGNAL);
        if (put <= 0) break;
        sent += static_cast<size_t>(put);
      }
      close(fd);
    });
  }
  ~RawServer() {
    thread_.join();
    close(listener_);
  }
  HttpUrl url() const { return {false, "127.0.0.1", std::to_string(port_), "/"}; }

 private:
  const int listener_;
  int port_ = 0;
  std::thread thread_;
};

TEST_CASE("Responses with a length, in chunks and until the end of the connection are read",
          "[http_post]") {
  for (const char* good : {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                           "1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
                           "HTTP/1.1 200 OK\r\n\r\nok", "HTTP/1.0 200 OK\r\n\r\nok"}) {
    INFO(good);
    RawServer server(good);
    const auto response = PostTo(server.url(), "x");
    REQUIRE(response.ok());
    CHECK(response->status == 200);
    CHECK(response->body == "ok");
  }
}

TEST_CASE("A server that does not speak HTTP is an error", "[http_post]") {
  const std::string bad[] = {"",
                             "SSH-2.0-OpenSSH\r\n",
                             "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
                             "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n",
                             "HTTP/1.1 2\r\n\r\n",
                             "HTTP/1.1 200 OK\r\nX: " + std::string(1 << 20, 'x'),
                             "HTTP/1.1 200 OK\r\n\r\n" + std::string(1 << 20, 'x'),
                             std::string(1 << 20, '\0')};
  for (const std::string& response : bad) {
    INFO(response.substr(0, 60));
    RawServer server(response);
    CHECK(absl::IsUnavailable(PostTo(server.url(), "x").status()));
  }
}

TEST_CASE("A POST over TLS checks the server's certificate and its name", "[http_post]") {
  const Authority authority("collectors"), strangers("strangers");
  ScratchDirectory directory;
  const Certificate certificate = authority.Issue("collector", 24);
  const std::string cert = directory / "server.pem", key = directory / "server.key",
                    ca = directory / "ca.pem", other_ca = directory / "other.pem";
  WriteText(cert, certificate.certificate_pem);
  WriteText(key, certificate.key_pem);
  WriteText(ca, authority.certificate_pem());
  WriteText(other_ca, strangers.certificate_pem());
  auto files = CertificateFiles::Open({.cert = cert, .key = key, .client_ca = ""});
  REQUIRE(files.ok());
  auto tls = TlsContext::Create(files->get());
  REQUIRE(tls.ok());
  HttpServer::Options options;
  options.tls = [&tls] { return (*tls)->current(); };
  Collector collector([](size_t) { return PlainText(200, "{}"); }, options);
  HttpUrl url = collector.url(/*tls=*/true);
  for (const char* host : {"localhost", "127.0.0.1"}) {
    url.host = host;
    const auto response = PostTo(url, std::string(1 << 20, 'x'), ca);
    INFO(host << " " << response.status().ToString());
    REQUIRE(response.ok());
    CHECK(response->status == 200);
  }
  CHECK(absl::IsUnavailable(PostTo(url, "x", other_ca).status()));
  CHECK(absl::IsUnavailable(PostTo(url, "x").status()));  // no CA of the system has signed it
  url.host = "127.1";  // resolves to 127.0.0.1, but is no name of the certificate
  CHECK(absl::IsUnavailable(PostTo(url, "x", ca).status()));
}

TEST_CASE("A POST ends soon after it is stopped", "[http_post]") {
  WaitingCollector collector;
  auto client = HttpPostClient::Create({.url = collector.url()});
  REQUIRE(client.ok());
  std::atomic<bool> stop{false};
  std::thread stopper([&] {
    while (collector.requests().empty()) std::this_thread::yield();
    stop = true;
  });
  CHECK(absl::IsUnavailable((*client)->Post({}, "x", std::chrono::hours(1), stop).status()));
  stopper.join();
  collector.Release();
}

}  // namespace
}  // namespace quintet
