#include "server/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/address.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

constexpr int kReservedDescriptors = 64;
constexpr int kPollMs = 50;  // upper bound of the delay of Stop
constexpr auto kPause = std::chrono::milliseconds(50);

int PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

void SetPort(sockaddr* address, int port) {
  const uint16_t network = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = network;
  }
}

// The highest file descriptor numbers below RLIMIT_NOFILE are reserved: connections must not use
// them. Returns the lowest reserved number. The kernel assigns the lowest free number, so a new
// connection gets a reserved number only if no other number is free.
int FirstReservedDescriptor() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1 << 30;
  const int64_t most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  return static_cast<int>(std::max<int64_t>(most - kReservedDescriptors, most / 2));
}

}  // namespace

Listener::Socket::~Socket() {
  if (fd >= 0) close(fd);
}

Listener::~Listener() { Stop(); }

absl::Status Listener::Bind(const std::string& flag, const std::string& text) {
  QT_ASSIGN_OR_RETURN(const Address address, ParseAddress(flag, text));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return ListenError(flag, text, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
  for (addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket.fd < 0 && errno == EAFNOSUPPORT) continue;
    // With port 0, the kernel selects the port of the first address; the others use the same port.
    if (port_ != 0) SetPort(one->ai_addr, port_);
    const int on = 1;
    const bool bound =
        socket.fd >= 0 && setsockopt(socket.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        // Accepted connections inherit TCP_NODELAY.
        setsockopt(socket.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0 &&
        bind(socket.fd, one->ai_addr, one->ai_addrlen) == 0 && listen(socket.fd, SOMAXCONN) == 0;
    if (!bound) return ListenError(flag, text, std::strerror(errno));
    port_ = PortOf(socket.fd);
    sockets_.push_back(std::move(socket));
  }
  if (sockets_.empty()) return ListenError(flag, text, "no such address");
  return absl::OkStatus();
}

void Listener::Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  acceptor_ = std::move(acceptor);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  sockets_.clear();
}

bool Listener::Accept(int listener) {
  while (!stop_) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
    const bool full = fd >= FirstReservedDescriptor();
    if (full != full_) {
      full_ = full;
      if (full)
        spdlog::warn("limit of open files reached: new connections are closed; raise ulimit -n");
      if (!full) spdlog::info("new connections are accepted again");
    }
    if (full) {
      close(fd);
      continue;
    }
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = fd;  // owned by gRPC from here on
    try {
      acceptor_->HandleNewConnection(&connection);
    } catch (const std::bad_alloc&) {
      return false;  // the connection is closed
    }
  }
  return true;
}

void Listener::Run() {
  std::vector<pollfd> polled;
  for (const Socket& socket : sockets_) polled.push_back({socket.fd, POLLIN, 0});
  while (!stop_) {
    if (poll(polled.data(), polled.size(), kPollMs) <= 0) continue;
    bool descriptors_left = true;
    for (const pollfd& one : polled) {
      if (one.revents != 0) descriptors_left = Accept(one.fd) && descriptors_left;
    }
    if (!descriptors_left) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace quintet
