#include "server/http_post_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "boost/asio/buffer.hpp"
#include "boost/beast/http/error.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "kernels/base/status_macros.h"
#include "openssl/err.h"
#include "openssl/ssl.h"
#include "server/byte_stream.h"

namespace quintet {
namespace {

namespace http = boost::beast::http;
using SteadyClock = std::chrono::steady_clock;

constexpr size_t kMaxResponseBytes = 64 << 10;
constexpr int kPollMs = 20;  // how often *stop is read

// When an exchange must end.
struct Limits {
  SteadyClock::time_point deadline;
  const std::atomic<bool>& stop;
};

absl::Status WaitFor(int fd, short events, const Limits& limits) {
  while (true) {
    if (limits.stop) return absl::UnavailableError("stopped");
    if (SteadyClock::now() >= limits.deadline) return absl::UnavailableError("timeout");
    pollfd wait{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&wait, 1, kPollMs);
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::UnavailableError("poll failed");
  }
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::StatusOr<Socket> ConnectTo(const addrinfo& address, const Limits& limits) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return absl::UnavailableError("no socket");
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return absl::UnavailableError("cannot connect");
    QT_RETURN_IF_ERROR(WaitFor(socket.fd(), POLLOUT, limits));
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
      return absl::UnavailableError("cannot connect");
    }
  }
  return socket;
}

absl::StatusOr<Socket> Connect(const HttpUrl& url, const Limits& limits) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found) != 0) {
    return absl::UnavailableError("the host's name cannot be resolved");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  absl::Status failure = absl::UnavailableError("the host has no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    absl::StatusOr<Socket> socket = ConnectTo(*address, limits);
    if (socket.ok()) return socket;
    failure = socket.status();
  }
  return failure;
}

// Repeats `operation` of a stream until it has made progress.
template <typename Operation>
absl::Status Progress(int fd, const Limits& limits, const char* failure, Operation operation) {
  while (true) {
    const StreamState state = operation();
    if (state == StreamState::kOk) return absl::OkStatus();
    if (state == StreamState::kClosed) return absl::UnavailableError(failure);
    QT_RETURN_IF_ERROR(WaitFor(fd, state == StreamState::kWaitReadable ? POLLIN : POLLOUT, limits));
  }
}

absl::Status Send(ByteStream* stream, int fd, absl::string_view text, const Limits& limits) {
  while (!text.empty()) {
    size_t put = 0;
    QT_RETURN_IF_ERROR(Progress(fd, limits, "the connection was closed",
                                [&] { return stream->Write(text.data(), text.size(), &put); }));
    text.remove_prefix(put);
  }
  return absl::OkStatus();
}

absl::StatusOr<HttpPostClient::Response> Receive(ByteStream* stream, int fd, const Limits& limits) {
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxResponseBytes);
  parser.eager(true);
  std::string input;
  boost::system::error_code error;
  while (!parser.is_done()) {
    char buffer[4096];
    size_t got = 0;
    const absl::Status read = Progress(fd, limits, "the connection was closed",
                                       [&] { return stream->Read(buffer, sizeof(buffer), &got); });
    if (!read.ok()) {
      // The end of the connection ends a response without a length.
      if (parser.is_header_done() && parser.need_eof()) parser.put_eof(error);
      if (!parser.is_done()) return read;
      break;
    }
    input.append(buffer, got);
    const size_t parsed = parser.put(boost::asio::buffer(input), error);
    input.erase(0, parsed);
    if (error == http::error::need_more) error = {};
    if (error || input.size() > kMaxResponseBytes) {
      return absl::UnavailableError("the response is not valid HTTP/1.1, or too large");
    }
  }
  HttpPostClient::Response response;
  response.status = parser.get().result_int();
  const auto retry_after = parser.get()[http::field::retry_after];
  response.retry_after.assign(retry_after.data(), retry_after.size());
  response.body = std::move(parser.get().body());
  return response;
}

bool IsTarget(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

}  // namespace

std::string HttpUrl::HostField() const {
  const bool v6 = absl::StrContains(host, ':');
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", ":", port);
}

absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      "expected http://HOST[:PORT][/PATH] or https://HOST[:PORT][/PATH]");
  HttpUrl url;
  url.tls = absl::ConsumePrefix(&text, "https://");
  if (!url.tls && !absl::ConsumePrefix(&text, "http://")) return bad;
  const absl::string_view authority = text.substr(0, text.find_first_of("/?"));
  url.target = std::string(text.substr(authority.size()));
  if (!absl::StartsWith(url.target, "/")) url.target.insert(0, "/");
  absl::string_view host = authority, port = url.tls ? "443" : "80";
  const size_t bracket = authority.rfind(']');
  if (const size_t colon = authority.rfind(':');
      colon != absl::string_view::npos && (bracket == absl::string_view::npos || colon > bracket)) {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
  }
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return bad;
  uint32_t number = 0;
  const bool named = std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':';
  });
  if (host.empty() || !named || !IsTarget(url.target)) return bad;
  if (!absl::SimpleAtoi(port, &number) || number < 1 || number > 65535) return bad;
  url.host = std::string(host);
  url.port = absl::StrCat(number);
  return url;
}

absl::StatusOr<std::unique_ptr<HttpPostClient>> HttpPostClient::Create(Options options) {
  std::shared_ptr<SSL_CTX> tls;
  if (options.url.tls) {
    tls.reset(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    if (tls == nullptr) throw std::bad_alloc();
    SSL_CTX_set_min_proto_version(tls.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(tls.get(), SSL_VERIFY_PEER, nullptr);
    const bool trusted =
        options.ca_file.empty()
            ? SSL_CTX_set_default_verify_paths(tls.get()) == 1
            : SSL_CTX_load_verify_locations(tls.get(), options.ca_file.c_str(), nullptr) == 1;
    ERR_clear_error();
    if (!trusted) {
      return absl::InvalidArgumentError("OpenSSL cannot use the CA certificates (a PEM file)");
    }
  }
  return std::unique_ptr<HttpPostClient>(new HttpPostClient(std::move(options), std::move(tls)));
}

absl::StatusOr<HttpPostClient::Response> HttpPostClient::Post(const Headers& headers,
                                                              absl::string_view body,
                                                              std::chrono::milliseconds timeout,
                                                              const std::atomic<bool>& stop) const {
  const Limits limits{SteadyClock::now() + timeout, stop};
  QT_ASSIGN_OR_RETURN(const Socket socket, Connect(options_.url, limits));
  std::unique_ptr<ByteStream> stream;
  if (tls_ == nullptr) {
    stream = std::make_unique<ByteStream>(socket.fd(), nullptr);
  } else {
    stream = std::make_unique<ByteStream>(socket.fd(), tls_.get(), options_.url.host);
  }
  QT_RETURN_IF_ERROR(Progress(socket.fd(), limits, "the TLS handshake failed",
                              [&] { return stream->Handshake(); }));
  std::string head =
      absl::StrCat("POST ", options_.url.target, " HTTP/1.1\r\nHost: ", options_.url.HostField(),
                   "\r\nConnection: close\r\n");
  for (const Headers* some : {&options_.headers, &headers}) {
    for (const auto& [name, value] : *some) absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  absl::StrAppend(&head, "Content-Length: ", body.size(), "\r\n\r\n");
  QT_RETURN_IF_ERROR(Send(stream.get(), socket.fd(), head, limits));
  QT_RETURN_IF_ERROR(Send(stream.get(), socket.fd(), body, limits));
  return Receive(stream.get(), socket.fd(), limits);
}

}  // namespace quintet
