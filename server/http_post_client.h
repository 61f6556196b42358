// A client that sends HTTP/1.1 POST requests to one URL, each on a connection of its own, over
// plain TCP or TLS. For a server that the operator has configured, such as a trace collector.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct ssl_ctx_st;

namespace quintet {

struct HttpUrl {
  bool tls = false;
  std::string host, port;  // host: a name or an address, an IPv6 address without brackets
  std::string target;      // path and query; begins with '/'

  std::string HostField() const;  // the value of the header Host
};

// Parses http://HOST[:PORT][/PATH] or https://... INVALID_ARGUMENT: `text` has another form. The
// message does not quote `text`, which may hold a password.
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text);

class HttpPostClient {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  struct Options {
    HttpUrl url;
    std::string ca_file;  // PEM: the server's certificate must be signed by one of these; empty:
                          // by one that the system trusts
    Headers headers;      // of every request
  };
  // INVALID_ARGUMENT: options.ca_file cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpPostClient>> Create(Options options);

  struct Response {
    int status = 0;
    std::string retry_after;  // the header Retry-After; empty: none
    std::string body;
  };
  // Sends `body` and returns the response. Blocks for `timeout` at most, except while the host's
  // name is resolved, and returns soon after *stop has become true. UNAVAILABLE: there is no
  // connection or no complete response. Thread-safe. Throws std::bad_alloc.
  absl::StatusOr<Response> Post(const Headers& headers, absl::string_view body,
                                std::chrono::milliseconds timeout,
                                const std::atomic<bool>& stop) const;

 private:
  HttpPostClient(Options options, std::shared_ptr<ssl_ctx_st> tls)
      : options_(std::move(options)), tls_(std::move(tls)) {}

  const Options options_;
  const std::shared_ptr<ssl_ctx_st> tls_;  // null: plain TCP
};

}  // namespace quintet
