// A small HTTP/1.1 server: a routing table, one thread for all sockets, and one worker thread for
// handlers that take long. No client can keep others from being answered:
//  - connections are bounded; when there is no room, the one that has waited longest is closed
//  - a request must arrive, and its answer must be read, within a deadline for the whole of it
//  - heads, bodies and unsent answers are bounded in bytes
//  - a malformed request, an exception or a failed allocation ends one connection at most
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
  std::chrono::steady_clock::time_point received;  // when its last byte was read
};

struct HttpResponse {
  int status = 200;
  const char* content_type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body;  // null: empty. Answers that are equal can share one
  std::string headers;                      // further header lines, each with its CRLF
};

// Of the request line, and of all header lines together.
inline constexpr size_t kMaxHttpHeadBytes = 8 << 10;

HttpResponse PlainText(int status, std::string body);

struct HttpRoute {
  enum class Thread { kIo, kWorker };
  std::string method;           // GET also serves HEAD
  std::string path;             // exact
  Thread thread = Thread::kIo;  // kIo: the handler neither blocks nor takes long
  // An exception is answered with 500.
  std::function<HttpResponse(const HttpRequest&)> handler;
};

class HttpServer {
 public:
  struct Options {
    std::string listen;  // HOST:PORT; port 0: any that is free
    // Fewer when the process may open fewer than 4 times as many files.
    size_t max_connections = 256;
    size_t max_body_bytes = 64 << 10;
    size_t max_unsent_bytes = 16 << 20;  // of all answers together
    // For a whole request, from its first byte; of a connection's first request, from accept().
    std::chrono::milliseconds request_timeout{5'000};
    std::chrono::milliseconds idle_timeout{75'000};   // between requests
    std::chrono::milliseconds write_timeout{10'000};  // for a whole answer
  };
  // Listens on every address of the host. INVALID_ARGUMENT: no such address, or it is taken.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options,
                                                           std::vector<HttpRoute> routes);
  // Waits for the handler that is running, if any; closes all connections.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
};

}  // namespace quintet
