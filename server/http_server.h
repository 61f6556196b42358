// A small HTTP/1.1 server: a routing table, one I/O thread for all sockets, and one worker thread
// for slow handlers. Handlers may also answer later, from any thread, completely or as a stream. No
// client can keep the server from answering others:
//  - The number of connections is bounded. At the limit, a new connection replaces the one whose
//    client has kept the server waiting longest.
//  - Each request must arrive completely, and its response must be read completely, by a deadline.
//  - Headers, bodies and unsent responses are bounded in bytes, each and in sum.
//  - A malformed request, an exception or a failed allocation ends at most one connection.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct ssl_ctx_st;

namespace quintet {

struct HttpRequest {
  std::string method;
  std::string target;                                        // path and query, as received
  std::vector<std::pair<std::string, std::string>> headers;  // in the order of the request
  std::string body;
  std::chrono::steady_clock::time_point received;  // time at which the last byte was read

  // Returns the value of the first header with this name, or nullopt. Ignores the case of letters.
  std::optional<absl::string_view> Header(absl::string_view name) const;
};

// The path of a request target, without the query and, in absolute form, without scheme and host.
absl::string_view PathOf(absl::string_view target);

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

// One request that is answered later, and its response: either complete, by Respond, or as a
// stream, by Begin, any number of Writes, and End. Thread-safe. Calls after the response has ended,
// or after the client has gone, do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  // The request. The handler may move parts out of it.
  virtual HttpRequest& request() = 0;
  // A number of the connection, which no other connection of this server has.
  virtual uint64_t connection() const = 0;
  virtual void Respond(HttpResponse response) = 0;  // allocates nothing
  // Starts a stream; the body of `head` is not used. Written bytes are sent as soon as possible.
  // The caller must bound the bytes of its Writes between two calls of HttpHandler::OnDrained.
  virtual void Begin(HttpResponse head) = 0;
  virtual void Write(absl::string_view bytes) = 0;  // throws std::bad_alloc
  virtual void End() = 0;
  // Closes the connection immediately. Allocates nothing.
  virtual void Abort() = 0;
};

// The handler of one exchange. The server calls it on its I/O thread: the functions must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The kernel has taken all bytes that were written so far.
  virtual void OnDrained() = 0;
  // Called once, as the last function: the response was sent (`sent`), or the client has gone. A
  // client that closes its side of the connection before it has the response counts as gone.
  virtual void OnDone(bool sent) = 0;
};

struct HttpRoute {
  enum class Thread { kIo, kWorker };
  std::string method;           // GET also serves HEAD
  std::string path;             // must match exactly; with '*' at its end: any longer path
  Thread thread = Thread::kIo;  // kIo is only for handlers that return at once
  // If the handler throws, the response is 500.
  std::function<HttpResponse(const HttpRequest&)> handler;
  // Set instead of `handler`. Called on the I/O thread: begins to handle an exchange and returns.
  std::function<std::shared_ptr<HttpHandler>(std::shared_ptr<HttpExchange>)> start = nullptr;
};

class HttpServer {
 public:
  struct Options {
    const char* flag = "--http-listen";  // named in errors
    std::string listen;                  // HOST:PORT; port 0 selects a free port
    // Returns the TLS context of a new connection. Null: plaintext.
    std::function<std::shared_ptr<ssl_ctx_st>()> tls;
    // Called on the I/O thread with each request's head, before the route is searched and the body
    // is read. If it returns a response, the request is rejected with it. Null `check`: no check.
    std::function<std::optional<HttpResponse>(const HttpRequest&)> check;
    // Makes the response to a request that the server rejects itself.
    std::function<HttpResponse(int status, std::string text)> refusal = PlainText;
    // Limit on open connections. It is lowered to `files_share` of RLIMIT_NOFILE if that is
    // smaller, but not below 8.
    size_t max_connections = 256;
    double files_share = 0.25;
    size_t max_body_bytes = 64 << 10;
    size_t max_received_bytes = 64 << 20;  // sum over the bodies that are being received
    size_t max_unsent_bytes = 16 << 20;    // sum over the responses of all connections
    // Time to receive a request, from its first byte to its last one. For the first request of a
    // connection, the time begins at accept() or, with TLS, after the handshake, which has the same
    // time limit.
    std::chrono::milliseconds request_timeout{5'000};
    std::chrono::milliseconds idle_timeout{75'000};   // time between two requests of a connection
    std::chrono::milliseconds write_timeout{10'000};  // time to write one complete response
  };
  // Starts to serve on every address of the host. INVALID_ARGUMENT: the address does not exist or
  // is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options,
                                                           std::vector<HttpRoute> routes);
  // Waits for the running handler of the worker, if any, and closes all connections.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  // Number of connections whose request is being handled or whose response is being sent.
  virtual size_t busy() const = 0;
  // Number of open connections.
  virtual size_t connections() const = 0;
  // Closes each connection after its next response.
  virtual void Drain() = 0;
};

}  // namespace quintet
