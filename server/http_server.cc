#include "server/http_server.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "boost/asio/post.hpp"
#include "kernels/base/status_macros.h"
#include "server/address.h"
#include "server/http_server_impl.h"

namespace quintet {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using SteadyClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kDeadlineTick{100};  // how often deadlines are checked
constexpr int kAcceptsPerTurn = 16;
constexpr int kSpareDescriptors = 8;  // left free, for re-reading certificates and keys
// Sizes of the kernel's socket buffers per connection. A client that never reads can fill them.
constexpr int kSendBufferBytes = 64 << 10, kReceiveBufferBytes = 32 << 10;

// Returns the soft limit of open files (RLIMIT_NOFILE), at most 2^30.
int DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1 << 30;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
}

}  // namespace

std::optional<absl::string_view> HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return std::nullopt;
}

absl::string_view PathOf(absl::string_view target) {
  if (absl::ConsumePrefix(&target, "http://")) {
    const size_t slash = target.find('/');
    target = slash == absl::string_view::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find('?'));
}

AsioHttpServer::AsioHttpServer(Options options, std::vector<HttpRoute> routes)
    : options_(std::move(options)),
      routes_(std::move(routes)),
      failed_(options_.refusal(500, "internal error\n")),
      busy_response_([this] {
        HttpResponse busy =
            options_.refusal(503, "too many requests are waiting: try again in 1 s\n");
        busy.headers = "Retry-After: 1\r\n";
        return busy;
      }()) {
  descriptor_limit_ = DescriptorLimit();
  const auto share = static_cast<size_t>(descriptor_limit_ * options_.files_share);
  max_connections_ = std::min(options_.max_connections, std::max<size_t>(8, share));
}

AsioHttpServer::~AsioHttpServer() {
  worker_.stop();
  worker_.join();
  stop_ = true;
  io_.stop();
  if (thread_.joinable()) thread_.join();
  for (const std::shared_ptr<HttpConnection>& c : connections_)
    EndExchange(c.get(), /*sent=*/false);
}

error_code AsioHttpServer::Open(const tcp::endpoint& endpoint) {
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

absl::Status AsioHttpServer::Listen() {
  QT_ASSIGN_OR_RETURN(const Address address, ParseAddress(options_.flag, options_.listen));
  error_code error;
  const auto found =
      tcp::resolver(io_).resolve(address.host, absl::StrCat(address.port),
                                 tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error) return ListenError(options_.flag, options_.listen, error.message());
  for (const auto& one : found) {
    tcp::endpoint endpoint = one.endpoint();
    // With port 0, the kernel selects the port of the first address; the others use the same port.
    if (port_ != 0) endpoint.port(static_cast<uint16_t>(port_));
    error = Open(endpoint);
    if (error == asio::error::address_family_not_supported) continue;
    if (error) return ListenError(options_.flag, options_.listen, error.message());
  }
  if (listening_.empty()) return ListenError(options_.flag, options_.listen, error.message());
  return absl::OkStatus();
}

void AsioHttpServer::Run() {
  pthread_setname_np(pthread_self(), "http");
  // With SIGPIPE blocked, a write to a closed TLS connection returns an error instead.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  while (!stop_) {
    for (ListenSocket& listening : listening_) Arm(&listening);
    try {
      io_.run_for(kDeadlineTick);
    } catch (const std::exception&) {
      // Out of memory in the I/O of a connection. If no later iteration repeats this I/O,
      // CheckConnections closes the connection at its deadline.
    }
    CheckConnections();
  }
}

void AsioHttpServer::Arm(ListenSocket* listening) {
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

bool AsioHttpServer::Accept(ListenSocket* listening) {
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
    HttpConnection* const oldest = Oldest(nullptr, [](const HttpConnection&) { return true; });
    if (oldest == nullptr) return false;
    Close(oldest);
  }
  return true;
}

// The kernel assigns the lowest free descriptor: a high number means that few are left.
bool AsioHttpServer::EvictIfFull(int descriptor) {
  if (open_ < max_connections_ && descriptor < descriptor_limit_ - kSpareDescriptors) return true;
  HttpConnection* const oldest = Oldest(nullptr, [](const HttpConnection&) { return true; });
  if (oldest != nullptr) Close(oldest);
  return oldest != nullptr;
}

void AsioHttpServer::Add(tcp protocol, int descriptor) {
  bool added = false, owned = false;
  try {
    const std::shared_ptr<HttpConnection> c =
        connections_.emplace_back(std::make_shared<HttpConnection>(io_, ++accepted_));
    added = true;
    c->self = std::prev(connections_.end());
    error_code error;
    c->socket.assign(protocol, descriptor, error);
    owned = !error;
    if (owned) c->socket.non_blocking(true, error);
    if (!error) {
      if (options_.tls != nullptr) c->tls = options_.tls();
      c->stream = std::make_unique<ByteStream>(descriptor, c->tls.get());
      c->coroutine = Serve(*c).handle;
      c->waiter = c->coroutine;
      ++open_;
      Resume(c.get());
      return;
    }
  } catch (const std::bad_alloc&) {
    // Out of memory: this connection is closed.
  }
  if (added) connections_.pop_back();
  if (!owned) close(descriptor);
}

void AsioHttpServer::Wait::await_suspend(std::coroutine_handle<> waiter) {
  for (const HttpEvent event : {kReadable, kWritable}) {
    if ((mask_ & event) != 0 && (c_->armed & event) == 0) server_->ArmSocket(c_, event);
  }
  if ((mask_ & kTurn) != 0) {
    asio::post(server_->io_,
               [server = server_, c = c_->shared_from_this()] { server->Signal(c.get(), kTurn); });
  }
  c_->waiter = waiter;
  c_->awaited = mask_;
}

uint8_t AsioHttpServer::Wait::await_resume() const {
  c_->awaited = 0;
  if (c_->closed) return 0;
  const uint8_t occurred = c_->occurred & mask_;
  c_->occurred &= static_cast<uint8_t>(~occurred);
  return occurred;
}

void AsioHttpServer::ArmSocket(HttpConnection* c, HttpEvent event) {
  const auto wait = event == kReadable ? tcp::socket::wait_read : tcp::socket::wait_write;
  c->socket.async_wait(wait, [this, event, c = c->shared_from_this()](error_code) {
    c->armed &= static_cast<uint8_t>(~event);
    Signal(c.get(), event);
  });
  c->armed |= event;
}

void AsioHttpServer::Signal(HttpConnection* c, HttpEvent event) {
  c->occurred |= event;
  if ((c->awaited & event) != 0) Resume(c);
}

void AsioHttpServer::Resume(HttpConnection* c) {
  const std::shared_ptr<HttpConnection> kept = c->shared_from_this();
  c->awaited = 0;
  std::exchange(c->waiter, nullptr).resume();
  if (!c->coroutine.done()) return;
  Close(c);
  EndExchange(c, /*sent=*/false);
  connections_.erase(c->self);
}

void AsioHttpServer::EnterPhase(HttpConnection* c, HttpPhase phase, milliseconds timeout) {
  const auto is_busy = [](HttpPhase of) { return of == HttpPhase::kReading ? size_t{0} : 1; };
  handling_ -= c->phase == HttpPhase::kHandling;
  handling_ += phase == HttpPhase::kHandling;
  busy_ += is_busy(phase);
  busy_ -= is_busy(c->phase);
  c->phase = phase;
  c->since = SteadyClock::now();
  c->deadline = c->since + timeout;
  connections_.splice(connections_.end(), connections_, c->self);
}

void AsioHttpServer::Close(HttpConnection* c) {
  if (c->closed) return;
  EnterPhase(c, HttpPhase::kReading, milliseconds(0));
  FinishWrite(c);
  SetReceived(c, 0);
  c->closed = true;
  --open_;
  error_code ignored;
  c->socket.close(ignored);  // resumes the coroutine, if it waits for the socket
}

void AsioHttpServer::CheckConnections() {
  const SteadyClock::time_point now = SteadyClock::now();
  // Resume may erase the connection, so the loop advances `it` first. Close moves the connection to
  // the end of the list, so `left` bounds the loop.
  size_t left = connections_.size();
  for (auto it = connections_.begin(); left > 0 && it != connections_.end(); --left) {
    const std::shared_ptr<HttpConnection> c = *it++;
    if (!c->closed && c->phase != HttpPhase::kHandling && c->deadline < now) Close(c.get());
    const bool missed = c->exchange != nullptr && c->exchange->HasMissedNews();
    try {
      if (missed) Signal(c.get(), kNews);
      if (c->closed && c->awaited != 0 && c->armed == 0) Resume(c.get());
    } catch (const std::bad_alloc&) {
      // Out of memory: the next tick tries again.
    }
  }
}

template <typename Matches>
HttpConnection* AsioHttpServer::Oldest(const HttpConnection* except, Matches matches) {
  for (const std::shared_ptr<HttpConnection>& c : connections_) {
    if (c->closed || c.get() == except || c->phase == HttpPhase::kHandling) continue;
    if (matches(*c)) return c.get();
  }
  return nullptr;
}

void AsioHttpServer::SetReceived(HttpConnection* c, size_t bytes) {
  received_ += bytes;
  received_ -= c->received;
  c->received = bytes;
  while (received_ > options_.max_received_bytes) {
    HttpConnection* const oldest =
        Oldest(c, [](const HttpConnection& one) { return one.received > 0; });
    if (oldest == nullptr) break;
    Close(oldest);
  }
}

void AsioHttpServer::CountUnsent(HttpConnection* c) {
  c->sent = 0;
  c->unsent = c->head.size() + (c->body == nullptr ? 0 : c->body->size());
  unsent_ += c->unsent;
  EnterPhase(c, HttpPhase::kWriting, options_.write_timeout);
  while (unsent_ > options_.max_unsent_bytes) {
    HttpConnection* const oldest =
        Oldest(c, [](const HttpConnection& one) { return one.phase == HttpPhase::kWriting; });
    if (oldest == nullptr) break;
    Close(oldest);
  }
}

void AsioHttpServer::FinishWrite(HttpConnection* c) {
  unsent_ -= c->unsent;
  c->unsent = 0;
  c->body = nullptr;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options,
                                                              std::vector<HttpRoute> routes) {
  const std::string listen = options.listen;
  const char* const flag = options.flag;
  try {
    auto server = std::make_unique<AsioHttpServer>(std::move(options), std::move(routes));
    QT_RETURN_IF_ERROR(server->Listen());
    server->StartThread();
    return server;
  } catch (const std::exception& error) {  // no thread, descriptor or memory is left
    return ListenError(flag, listen, error.what());
  }
}

}  // namespace quintet
