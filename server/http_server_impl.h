// The implementation of HttpServer. http_server.cc has the listening sockets, the limits and the
// I/O thread, http_serve.cc the requests and responses of a connection.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/thread_pool.hpp"
#include "server/http_connection.h"
#include "server/http_server.h"

namespace quintet {

class AsioHttpServer final : public HttpServer {
 public:
  AsioHttpServer(Options options, std::vector<HttpRoute> routes);
  ~AsioHttpServer() override;

  absl::Status Listen();
  void StartThread() {
    thread_ = std::thread([this] { Run(); });
  }
  int port() const override { return port_; }
  size_t busy() const override { return busy_; }
  size_t connections() const override { return open_; }
  void Drain() override { draining_ = true; }

 private:
  using Tcp = boost::asio::ip::tcp;
  struct ListenSocket {
    ListenSocket(boost::asio::io_context& io, Tcp ip_version)
        : acceptor(io), protocol(ip_version) {}
    Tcp::acceptor acceptor;
    const Tcp protocol;
    bool armed = false;  // an async_wait for connections is outstanding
  };
  // One request: its head and body, and the way in which it is answered.
  struct Received;
  // The next state of a connection after a response: it reads the next request, it closes once the
  // client has read the response, or it closes at once.
  enum class Next : uint8_t { kRequest, kLinger, kGone };
  // Awaitable: waits for one of the events `mask`. Returns those that have occurred; 0 if the
  // connection is closed.
  class Wait;

  boost::system::error_code Open(const Tcp::endpoint& endpoint);
  void Run();
  void Arm(ListenSocket* listening);
  // Accepts pending connections. Returns false if no descriptor or memory is left for now.
  bool Accept(ListenSocket* listening);
  // If the limit of connections or descriptors is reached, closes the oldest connection that is
  // not in kHandling (Oldest). Returns false if the limit is reached and all are in kHandling.
  bool EvictIfFull(int descriptor);
  void Add(Tcp protocol, int descriptor);

  // Starts to wait for a readable or writable socket.
  void ArmSocket(HttpConnection* c, HttpEvent event);
  // Records `event`. Resumes the coroutine of the connection if the coroutine awaits this event.
  void Signal(HttpConnection* c, HttpEvent event);
  void Resume(HttpConnection* c);
  void EnterPhase(HttpConnection* c, HttpPhase phase, std::chrono::milliseconds timeout);
  void Close(HttpConnection* c);
  // Closes connections past their deadline. Resumes connections that no other event will resume.
  void CheckConnections();
  // Returns the connection that has been in its current phase longest, or null. Skips `except`,
  // closed connections, connections in kHandling, and connections for which `matches` is false.
  template <typename Matches>
  HttpConnection* Oldest(const HttpConnection* except, Matches matches);

  HttpCoroutine Serve(HttpConnection& c);
  HttpTask<bool> Handshake(HttpConnection& c);
  HttpTask<Next> ServeOne(HttpConnection& c, bool first);
  HttpTask<bool> ReadRequest(HttpConnection& c, Received* in, bool first);
  // Sends what StartWrite or StartStreamPart has prepared.
  HttpTask<bool> Flush(HttpConnection& c);
  // Handles a request whose handler answers later. Returns whether the whole response was sent.
  HttpTask<bool> RunExchange(HttpConnection& c, Received* in);
  HttpTask<bool> Linger(HttpConnection& c);

  // Reads available bytes into the buffer, which must have room.
  static StreamState ReadInput(HttpConnection* c);
  // Parses the input. Returns false if more input is needed.
  bool Advance(HttpConnection* c, Received* in);
  // Handles the complete head of a request: check and route.
  void OnHead(HttpConnection* c, Received* in);
  // Counts the body bytes of `c`. Closes other connections if all bodies together are too large.
  void SetReceived(HttpConnection* c, size_t bytes);
  // Runs a handler. Exceptions become a 500 response.
  HttpResponse RunHandler(const HttpRoute& route, const HttpRequest& request) const noexcept;
  void StartExchange(HttpConnection* c, Received* in);
  void EndExchange(HttpConnection* c, bool sent);
  void StartWrite(HttpConnection* c, const HttpResponse& response, const Received& in);
  void StartStreamPart(HttpConnection* c, const HttpNews& news, const Received& in);
  void CountUnsent(HttpConnection* c);
  void FinishWrite(HttpConnection* c);
  // Writes as much of the response as possible. Returns kOk when all of it is written.
  static StreamState Send(HttpConnection* c);

  const Options options_;
  const std::vector<HttpRoute> routes_;
  const HttpResponse failed_, busy_response_;  // 500 and 503; built in advance in case memory ends
  size_t max_connections_ = 0;
  int descriptor_limit_ = 0;
  int port_ = 0;

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  std::list<ListenSocket> listening_;
  // For the I/O thread only: the connections, ordered by HttpConnection::since, and the counts
  // accepted_, handling_, unsent_ and received_.
  std::list<std::shared_ptr<HttpConnection>> connections_;
  uint64_t accepted_ = 0;
  size_t handling_ = 0, unsent_ = 0, received_ = 0;
  std::atomic<size_t> open_{0}, busy_{0};

  boost::asio::thread_pool worker_{1};
  std::atomic<bool> stop_{false}, draining_{false};
  std::thread thread_;
};

class AsioHttpServer::Wait {
 public:
  Wait(AsioHttpServer* server, HttpConnection* c, uint8_t mask)
      : server_(server), c_(c), mask_(mask) {}
  bool await_ready() const { return c_->closed || (c_->occurred & mask_) != 0; }
  void await_suspend(std::coroutine_handle<> waiter);
  uint8_t await_resume() const;

 private:
  AsioHttpServer* const server_;
  HttpConnection* const c_;
  const uint8_t mask_;
};

}  // namespace quintet
