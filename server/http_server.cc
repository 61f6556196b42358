#include "server/http_server.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <coroutine>
#include <cstdint>
#include <cstring>
#include <list>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "boost/asio/buffer.hpp"
#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/post.hpp"
#include "boost/asio/thread_pool.hpp"
#include "boost/beast/http/error.hpp"
#include "kernels/base/status_macros.h"
#include "server/address.h"
#include "server/http_message.h"

namespace quintet {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr char kFlag[] = "--http-listen";
constexpr milliseconds kTick{100};             // how often deadlines are checked
constexpr milliseconds kLingerTimeout{1'000};  // for the client to read the last response
constexpr size_t kLingerBytes = 256 << 10;
constexpr int kAcceptsPerTurn = 16;
constexpr int kReservedDescriptors = 8;  // left free, for re-reading certificates and keys
// Sizes of the kernel's socket buffers per connection. A client that never reads can fill them.
constexpr int kSendBufferBytes = 64 << 10, kReceiveBufferBytes = 32 << 10;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

// The coroutine that serves a connection. It starts suspended; its handle's owner destroys it. If
// an allocation in Asio fails, it gets std::bad_alloc; an asio::awaitable would destroy its frame.
struct Coroutine {
  struct promise_type {
    Coroutine get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}  // out of memory: ends the coroutine and its connection
  };
  std::coroutine_handle<promise_type> handle;
};

enum class Phase : uint8_t { kReading, kHandling, kWriting };

struct Connection {
  explicit Connection(asio::io_context& io) : socket(io) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() {
    if (coroutine) coroutine.destroy();
  }

  absl::string_view input() const { return {buffer.data() + begin, end - begin}; }

  tcp::socket socket;
  std::coroutine_handle<> coroutine;
  std::list<Connection>::iterator self;
  bool closed = false;  // the coroutine ends when it is resumed
  Phase phase = Phase::kReading;
  Clock::time_point since, deadline;  // start and deadline of the phase; kHandling has no deadline

  std::array<char, 2 * kMaxHttpHeadBytes> buffer;  // input: [begin, end)
  size_t begin = 0, end = 0;
  std::string head;  // status line and header fields of the response
  std::shared_ptr<const std::string> body;
  size_t sent = 0, unsent = 0;
};

struct Exchange {
  HttpParser parser;
  const HttpRoute* route = nullptr;      // set once the header has been read
  std::optional<HttpResponse> response;  // set once the response is known
  bool malformed = false;                // the connection must be closed after the response
};

struct ListenSocket {
  ListenSocket(asio::io_context& io, tcp ip_version) : acceptor(io), protocol(ip_version) {}
  tcp::acceptor acceptor;
  const tcp protocol;
  bool armed = false;  // an async_wait for connections is outstanding
};

class BeastServer : public HttpServer {
 public:
  BeastServer(Options options, std::vector<HttpRoute> routes);
  ~BeastServer() override;

  absl::Status Listen();
  void StartThread() {
    thread_ = std::thread([this] { Run(); });
  }
  int port() const override { return port_; }

 private:
  // Awaitable: waits for a readable or writable socket. Returns false if the connection is closed.
  class SocketReady;
  // Awaitable that yields to the other connections. It returns false if the connection is closed.
  class Yield;
  // Awaitable that runs a handler on the worker thread and returns its response.
  class WorkerResult;

  error_code Open(const tcp::endpoint& endpoint);
  void Run();
  void Arm(ListenSocket* listening);
  // Accepts pending connections. Returns false if no descriptor or memory is left for now.
  bool Accept(ListenSocket* listening);
  // If the limit of connections or descriptors is reached, closes the oldest connection that is
  // not in kHandling (Oldest). Returns false if the limit is reached and all are in kHandling.
  bool EvictIfFull(int descriptor);
  void Add(tcp protocol, int descriptor);

  Coroutine Serve(Connection& c);
  void Resume(Connection* c);
  void EnterPhase(Connection* c, Phase phase, milliseconds timeout);
  void Close(Connection* c);
  void CloseExpired();
  // Returns the connection that has been in its current phase longest, or null. Skips `except` and
  // those in kHandling; if `writing_only`, considers only those in kWriting.
  Connection* Oldest(bool writing_only, const Connection* except);

  // Reads the available bytes of the socket. Returns false at the end of the stream.
  static bool ReadInput(Connection* c);
  // Parses the input. Returns false if more input is needed.
  bool Advance(Connection* c, Exchange* exchange);
  error_code Parse(Connection* c, HttpParser* parser) const;
  // Runs a handler. Exceptions become a 500 response.
  HttpResponse RunHandler(const HttpRoute& route, const HttpRequest& request) const noexcept;
  void StartWrite(Connection* c, const HttpResponse& response, bool head_only, bool keep_alive);
  void FinishWrite(Connection* c);
  // Writes as much of the response as possible. Returns would_block if a part remains.
  static error_code Send(Connection* c);

  const Options options_;
  const std::vector<HttpRoute> routes_;
  const HttpResponse failed_, busy_;  // 500 and 503; built in advance in case memory runs out
  size_t max_connections_ = 0;
  int descriptor_limit_ = 0;
  int port_ = 0;

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::list<ListenSocket> listening_;
  std::list<Connection> connections_;  // this and the next line: only on the I/O thread
  size_t open_ = 0, handling_ = 0, unsent_ = 0;

  asio::thread_pool worker_{1};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class BeastServer::SocketReady {
 public:
  SocketReady(BeastServer* server, Connection* c, tcp::socket::wait_type wait)
      : server_(server), c_(c), wait_(wait) {}
  bool await_ready() const { return c_->closed; }
  void await_suspend(std::coroutine_handle<>) {
    c_->socket.async_wait(wait_, [this](error_code error) {
      error_ = error;
      server_->Resume(c_);
    });
  }
  bool await_resume() const { return !c_->closed && !error_; }

 private:
  BeastServer* const server_;
  Connection* const c_;
  const tcp::socket::wait_type wait_;
  error_code error_;
};

class BeastServer::Yield {
 public:
  Yield(BeastServer* server, Connection* c) : server_(server), c_(c) {}
  bool await_ready() const { return c_->closed; }
  void await_suspend(std::coroutine_handle<>) {
    asio::post(server_->io_, [server = server_, c = c_] { server->Resume(c); });
  }
  bool await_resume() const { return !c_->closed; }

 private:
  BeastServer* const server_;
  Connection* const c_;
};

class BeastServer::WorkerResult {
 public:
  WorkerResult(BeastServer* server, Connection* c, const HttpRoute& route,
               const HttpRequest& request)
      : server_(server), c_(c), route_(route), request_(request) {}
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<>) {
    asio::post(server_->worker_, [this] {
      response_ = server_->RunHandler(route_, request_);
      // Retried until its allocation succeeds, since nothing else resumes the connection.
      for (bool posted = false; !posted;) {
        try {
          asio::post(server_->io_, [server = server_, c = c_] { server->Resume(c); });
          posted = true;
        } catch (const std::bad_alloc&) {
          std::this_thread::sleep_for(kTick);
        }
      }
    });
  }
  HttpResponse await_resume() { return std::move(response_); }

 private:
  BeastServer* const server_;
  Connection* const c_;
  const HttpRoute& route_;
  const HttpRequest& request_;
  HttpResponse response_;
};

// Returns the soft limit of open files (RLIMIT_NOFILE), at most 2^30.
int DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1 << 30;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

BeastServer::BeastServer(Options options, std::vector<HttpRoute> routes)
    : options_(std::move(options)),
      routes_(std::move(routes)),
      failed_(PlainText(500, "internal error\n")),
      busy_([] {
        HttpResponse busy = PlainText(503, "too many requests are waiting: try again in 1 s\n");
        busy.headers = "Retry-After: 1\r\n";
        return busy;
      }()) {
  descriptor_limit_ = DescriptorLimit();
  max_connections_ = std::min<size_t>(options_.max_connections, std::max(8, descriptor_limit_ / 4));
}

BeastServer::~BeastServer() {
  worker_.stop();
  worker_.join();
  stop_ = true;
  io_.stop();
  if (thread_.joinable()) thread_.join();
}

error_code BeastServer::Open(const tcp::endpoint& endpoint) {
  ListenSocket& listening = listening_.emplace_back(io_, endpoint.protocol());
  tcp::acceptor& acceptor = listening.acceptor;
  error_code error;
  const auto step = [&error](auto action) {
    if (!error) action();
  };
  // Accepted connections inherit the buffer sizes.
  step([&] { acceptor.open(endpoint.protocol(), error); });
  step([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), error); });
  step([&] { acceptor.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), error); });
  step([&] {
    acceptor.set_option(asio::socket_base::receive_buffer_size(kReceiveBufferBytes), error);
  });
  step([&] { acceptor.set_option(tcp::no_delay(true), error); });
  step([&] { acceptor.non_blocking(true, error); });
  step([&] { acceptor.bind(endpoint, error); });
  step([&] { acceptor.listen(asio::socket_base::max_listen_connections, error); });
  if (error) {
    listening_.pop_back();
  } else {
    port_ = acceptor.local_endpoint().port();
  }
  return error;
}

absl::Status BeastServer::Listen() {
  QT_ASSIGN_OR_RETURN(const Address address, ParseAddress(kFlag, options_.listen));
  error_code error;
  const auto found =
      tcp::resolver(io_).resolve(address.host, absl::StrCat(address.port),
                                 tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return ListenError(kFlag, options_.listen, error.message());
  for (const auto& one : found) {
    tcp::endpoint endpoint = one.endpoint();
    // With port 0, the kernel selects the port of the first address; the others use the same port.
    if (port_ != 0) endpoint.port(static_cast<uint16_t>(port_));
    error = Open(endpoint);
    if (error == asio::error::address_family_not_supported) continue;
    if (error) return ListenError(kFlag, options_.listen, error.message());
  }
  if (listening_.empty()) return ListenError(kFlag, options_.listen, error.message());
  return absl::OkStatus();
}

void BeastServer::Run() {
  pthread_setname_np(pthread_self(), "http");
  while (!stop_) {
    for (ListenSocket& listening : listening_) Arm(&listening);
    try {
      io_.run_for(kTick);
    } catch (const std::exception&) {
      // Out of memory: a later iteration tries again, or a deadline closes the connection.
    }
    CloseExpired();
  }
}

void BeastServer::Arm(ListenSocket* listening) {
  if (listening->armed) return;
  try {
    listening->acceptor.async_wait(tcp::acceptor::wait_read, [this, listening](error_code error) {
      listening->armed = false;
      if (!error && Accept(listening)) Arm(listening);
    });
    listening->armed = true;
  } catch (const std::bad_alloc&) {
    // Out of memory: the loop in Run retries at the next tick.
  }
}

bool BeastServer::Accept(ListenSocket* listening) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int fd = accept4(listening->acceptor.native_handle(), nullptr, nullptr,
                           SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      if (EvictIfFull(fd)) {
        Add(listening->protocol, fd);
      } else {
        close(fd);
      }
      continue;
    }
    const bool exhausted =
        errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (!exhausted) return true;  // no connection is pending, or the client has gone
    Connection* const oldest = Oldest(/*writing_only=*/false, nullptr);
    if (oldest == nullptr) return false;
    Close(oldest);
  }
  return true;
}

// The kernel assigns the lowest free descriptor: a high number means that few are left.
bool BeastServer::EvictIfFull(int descriptor) {
  if (open_ < max_connections_ && descriptor < descriptor_limit_ - kReservedDescriptors)
    return true;
  Connection* const oldest = Oldest(/*writing_only=*/false, nullptr);
  if (oldest != nullptr) Close(oldest);
  return oldest != nullptr;
}

void BeastServer::Add(tcp protocol, int descriptor) {
  bool added = false, owned = false;
  try {
    Connection& c = connections_.emplace_back(io_);
    added = true;
    c.self = std::prev(connections_.end());
    error_code error;
    c.socket.assign(protocol, descriptor, error);
    owned = !error;
    if (owned) c.socket.non_blocking(true, error);
    if (!error) {
      c.coroutine = Serve(c).handle;
      ++open_;
      Resume(&c);
      return;
    }
  } catch (const std::bad_alloc&) {
    // Out of memory: this connection is closed.
  }
  if (added) connections_.pop_back();
  if (!owned) close(descriptor);
}

void BeastServer::Resume(Connection* c) {
  c->coroutine.resume();
  if (!c->coroutine.done()) return;
  Close(c);
  connections_.erase(c->self);
}

void BeastServer::EnterPhase(Connection* c, Phase phase, milliseconds timeout) {
  handling_ -= c->phase == Phase::kHandling;
  handling_ += phase == Phase::kHandling;
  c->phase = phase;
  c->since = Clock::now();
  c->deadline = c->since + timeout;
}

void BeastServer::Close(Connection* c) {
  if (c->closed) return;
  EnterPhase(c, Phase::kReading, milliseconds(0));
  FinishWrite(c);
  c->closed = true;
  --open_;
  error_code ignored;
  c->socket.close(ignored);  // resumes the coroutine, if it waits for the socket
}

void BeastServer::CloseExpired() {
  const Clock::time_point now = Clock::now();
  for (Connection& c : connections_) {
    if (c.phase != Phase::kHandling && c.deadline < now) Close(&c);
  }
}

Connection* BeastServer::Oldest(bool writing_only, const Connection* except) {
  Connection* oldest = nullptr;
  for (Connection& c : connections_) {
    if (c.closed || &c == except || c.phase == Phase::kHandling) continue;
    if (writing_only && c.phase != Phase::kWriting) continue;
    if (oldest == nullptr || c.since < oldest->since) oldest = &c;
  }
  return oldest;
}

bool BeastServer::ReadInput(Connection* c) {
  const absl::string_view input = c->input();
  std::memmove(c->buffer.data(), input.data(), input.size());
  c->begin = 0;
  c->end = input.size();
  error_code error;
  c->end += c->socket.read_some(asio::buffer(c->buffer.data() + c->end, c->buffer.size() - c->end),
                                error);
  return !error || error == asio::error::would_block;
}

error_code BeastServer::Parse(Connection* c, HttpParser* parser) const {
  while (!parser->is_done() && c->begin < c->end) {
    error_code error;
    const absl::string_view input = c->input();
    const size_t used = parser->put(asio::buffer(input.data(), input.size()), error);
    c->begin += used;
    if (error && error != http::error::need_more) return error;
    if (error && used == 0) {
      // The request line or a header line is still incomplete.
      return input.size() < c->buffer.size() ? error : http::error::header_limit;
    }
  }
  return {};
}

bool BeastServer::Advance(Connection* c, Exchange* exchange) {
  HttpParser& parser = exchange->parser;
  const error_code error = Parse(c, &parser);
  if (error && error != http::error::need_more) {
    exchange->malformed = true;
    exchange->response = MalformedResponse(error, options_.max_body_bytes);
  } else if (const char* flaw = parser.is_header_done() ? HeaderError(parser) : nullptr) {
    exchange->malformed = true;
    exchange->response = PlainText(400, absl::StrCat("malformed request: ", flaw, "\n"));
  } else if (parser.is_header_done() && exchange->route == nullptr) {
    HttpResponse refusal;
    exchange->route = FindRoute(parser, routes_, &refusal);
    if (exchange->route == nullptr) {
      exchange->response = std::move(refusal);
    } else if (!parser.is_done() && Expects100Continue(parser)) {
      error_code failure;
      const auto line = asio::buffer(kContinue, sizeof(kContinue) - 1);
      if (c->socket.write_some(line, failure) != line.size()) Close(c);  // the client does not read
    }
  }
  return parser.is_done() || exchange->response.has_value();
}

HttpResponse BeastServer::RunHandler(const HttpRoute& route,
                                     const HttpRequest& request) const noexcept {
  try {
    return route.handler(request);
  } catch (...) {
    return failed_;
  }
}

void BeastServer::StartWrite(Connection* c, const HttpResponse& response, bool head_only,
                             bool keep_alive) {
  c->head = ResponseHead(response, keep_alive);
  c->body = head_only ? nullptr : response.body;
  c->sent = 0;
  c->unsent = c->head.size() + (c->body == nullptr ? 0 : c->body->size());
  unsent_ += c->unsent;
  EnterPhase(c, Phase::kWriting, options_.write_timeout);
  while (unsent_ > options_.max_unsent_bytes) {
    Connection* const oldest = Oldest(/*writing_only=*/true, c);
    if (oldest == nullptr) break;
    Close(oldest);
  }
}

void BeastServer::FinishWrite(Connection* c) {
  unsent_ -= c->unsent;
  c->unsent = 0;
  c->body = nullptr;
}

error_code BeastServer::Send(Connection* c) {
  const absl::string_view body = c->body == nullptr ? absl::string_view() : *c->body;
  while (c->sent < c->head.size() + body.size()) {
    const size_t of_head = std::min(c->sent, c->head.size()), of_body = c->sent - of_head;
    const std::array<asio::const_buffer, 2> rest = {
        asio::buffer(c->head.data() + of_head, c->head.size() - of_head),
        asio::buffer(body.data() + of_body, body.size() - of_body)};
    error_code error;
    c->sent += c->socket.write_some(rest, error);
    if (error) return error;
  }
  return {};
}

Coroutine BeastServer::Serve(Connection& c) {
  SocketReady readable(this, &c, tcp::socket::wait_read),
      writable(this, &c, tcp::socket::wait_write);
  Yield turn(this, &c);
  bool keep_alive = true;
  for (bool first = true; keep_alive; first = false) {
    Exchange exchange;
    HttpParser& parser = exchange.parser;
    parser.eager(true);
    parser.header_limit(kMaxHttpHeadBytes);
    parser.body_limit(options_.max_body_bytes);
    bool idle = !first && c.input().empty();
    EnterPhase(&c, Phase::kReading, idle ? options_.idle_timeout : options_.request_timeout);
    while (!Advance(&c, &exchange)) {
      const bool ready = co_await readable;
      if (!ready || !ReadInput(&c)) co_return;
      if (std::exchange(idle, false)) EnterPhase(&c, Phase::kReading, options_.request_timeout);
    }
    if (!exchange.response.has_value()) {
      const HttpRequest request = {std::move(parser.get().body()), Clock::now()};
      if (exchange.route->thread == HttpRoute::Thread::kIo) {
        exchange.response = RunHandler(*exchange.route, request);
      } else if (handling_ >= max_connections_ / 4) {
        exchange.response = busy_;
      } else {
        EnterPhase(&c, Phase::kHandling, milliseconds(0));
        WorkerResult handled(this, &c, *exchange.route, request);
        exchange.response = co_await handled;
      }
    }
    keep_alive = parser.is_done() && parser.keep_alive() && !exchange.malformed;
    const bool head_only = parser.is_header_done() && parser.get().method() == http::verb::head;
    StartWrite(&c, *exchange.response, head_only, keep_alive);
    while (true) {
      const error_code error = Send(&c);
      if (!error) break;
      if (error != asio::error::would_block) co_return;
      const bool ready = co_await writable;
      if (!ready) co_return;
    }
    FinishWrite(&c);
    const bool open = co_await turn;
    if (!open) co_return;
  }
  // Discards input: closing with unread input would reset the connection and lose the response.
  error_code error;
  c.socket.shutdown(tcp::socket::shutdown_send, error);
  EnterPhase(&c, Phase::kReading, kLingerTimeout);
  for (size_t discarded = 0; !error && discarded < kLingerBytes;) {
    const bool ready = co_await readable;
    c.begin = c.end = 0;
    if (!ready || !ReadInput(&c)) co_return;
    discarded += c.end;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options,
                                                              std::vector<HttpRoute> routes) {
  const std::string listen = options.listen;
  try {
    auto server = std::make_unique<BeastServer>(std::move(options), std::move(routes));
    QT_RETURN_IF_ERROR(server->Listen());
    server->StartThread();
    return server;
  } catch (const std::exception& error) {  // no thread, descriptor or memory is left
    return ListenError(kFlag, listen, error.what());
  }
}

}  // namespace quintet
