// A small HTTP/1.1 server: a routing table, one I/O thread for all sockets, and one worker thread
// for slow handlers. No client can keep the server from answering others:
//  - The number of connections is bounded. At the limit, a new connection replaces the one whose
//    client has kept the server waiting longest.
//  - Each request must arrive completely, and its response must be read completely, by a deadline.
//  - Headers, bodies and unsent responses are bounded in bytes.
//  - A malformed request, an exception or a failed allocation ends at most one connection.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

struct HttpRequest {
  std::string body;
  std::chrono::steady_clock::time_point received;  // time at which the last byte was read
};

struct HttpResponse {
  int status = 200;
  const char* content_type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body;  // null: empty. Equal responses can share one body.
  std::string headers;                      // additional header lines, each with its CRLF
};

// Maximum size of the request line, and of all header lines together.
inline constexpr size_t kMaxHttpHeadBytes = 8 << 10;

// Returns a response of type text/plain.
HttpResponse PlainText(int status, std::string body);

struct HttpRoute {
  enum class Thread { kIo, kWorker };
  std::string method;           // GET also serves HEAD
  std::string path;             // must match exactly
  Thread thread = Thread::kIo;  // kIo is only for handlers that return at once
  // If the handler throws, the response is 500.
  std::function<HttpResponse(const HttpRequest&)> handler;
};

class HttpServer {
 public:
  struct Options {
    std::string listen;  // HOST:PORT; port 0 selects a free port
    // Limit on open connections. It is lowered to a quarter of RLIMIT_NOFILE if that is smaller,
    // but not below 8.
    size_t max_connections = 256;
    size_t max_body_bytes = 64 << 10;
    size_t max_unsent_bytes = 16 << 20;  // sum over the responses of all connections
    // Time to receive a request, from its first byte to its last one; for the first request of a
    // connection, from accept().
    std::chrono::milliseconds request_timeout{5'000};
    std::chrono::milliseconds idle_timeout{75'000};   // time between two requests of a connection
    std::chrono::milliseconds write_timeout{10'000};  // time to write one complete response
  };
  // Starts to serve on every address of the host. INVALID_ARGUMENT: the address does not exist or
  // is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options,
                                                           std::vector<HttpRoute> routes);
  // Waits for the running handler, if any, and closes all connections.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
};

}  // namespace quintet
