#include "server/listener.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/server/lowered_file_limit.h"

namespace quintet {
namespace {

using grpc::experimental::ExternalConnectionAcceptor;

constexpr int kPatienceMs = 10'000;

// Makes a gRPC acceptor of external connections that keeps every connection it receives open.
class Holder {
 public:
  ~Holder() { CloseAll(); }
  size_t count() {
    std::lock_guard<std::mutex> lock(mutex_);
    return fds_.size();
  }
  void CloseAll() {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int fd : fds_) close(fd);
    fds_.clear();
  }
  std::unique_ptr<ExternalConnectionAcceptor> acceptor() {
    return std::make_unique<Acceptor>(this);
  }

 private:
  class Acceptor : public ExternalConnectionAcceptor {
   public:
    explicit Acceptor(Holder* holder) : holder_(holder) {}
    void HandleNewConnection(NewConnectionParameters* connection) override {
      std::lock_guard<std::mutex> lock(holder_->mutex_);
      holder_->fds_.push_back(connection->fd);
      // Send a byte to tell the client that its connection was accepted.
      if (write(connection->fd, "x", 1) != 1) close(holder_->fds_.back());
    }

   private:
    Holder* const holder_;
  };

  std::mutex mutex_;
  std::vector<int> fds_;
};

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

enum class Fate { kTaken, kClosed, kWaiting };

Fate FateOf(int fd, int patience_ms = kPatienceMs) {
  pollfd polled = {fd, POLLIN, 0};
  if (poll(&polled, 1, patience_ms) <= 0) return Fate::kWaiting;
  char word = 0;
  return read(fd, &word, 1) == 1 ? Fate::kTaken : Fate::kClosed;
}

TEST_CASE("A listener binds its port exclusively and rejects invalid addresses") {
  Listener listener;
  REQUIRE(listener.Bind("--listen", "127.0.0.1:0").ok());
  REQUIRE(listener.port() > 0);
  Listener second;
  const std::string taken = absl::StrCat("127.0.0.1:", listener.port());
  for (const std::string& address :
       {taken, std::string("nonsense"), std::string("127.0.0.1:"), std::string("127.0.0.1:65536"),
        std::string("127.0.0.1:-1"), std::string("256.0.0.1:1"), std::string(":x")}) {
    INFO(address);
    const absl::Status status = second.Bind("--listen", address);
    CHECK(absl::IsInvalidArgument(status));
    CHECK_THAT(std::string(status.message()), Catch::Matchers::ContainsSubstring(address));
  }
  listener.Stop();
  CHECK(second.Bind("--listen", taken).ok());
}

TEST_CASE("A client that connects before the start is accepted") {
  Holder holder;
  Listener listener;
  REQUIRE(listener.Bind("--listen", "localhost:0").ok());
  const int early = Connect(listener.port());
  CHECK(FateOf(early, 20) == Fate::kWaiting);
  listener.Start(holder.acceptor());
  CHECK(FateOf(early) == Fate::kTaken);
  close(early);
}

TEST_CASE("Near the file descriptor limit connections are closed at once, later accepted again") {
  Holder holder;
  Listener listener;
  REQUIRE(listener.Bind("--listen", "127.0.0.1:0").ok());
  listener.Start(holder.acceptor());
  const LoweredFileLimit limit(256);
  std::vector<int> clients;
  Fate fate = Fate::kTaken;
  while (fate == Fate::kTaken && clients.size() < 200) {
    clients.push_back(Connect(listener.port()));
    fate = FateOf(clients.back());
  }
  CHECK(fate == Fate::kClosed);
  CHECK(holder.count() == clients.size() - 1);
  CHECK(clients.size() > 50);  // more than the reserve is available
  for (int fd : clients) close(fd);
  holder.CloseAll();
  const int late = Connect(listener.port());
  CHECK(FateOf(late) == Fate::kTaken);
  close(late);
}

TEST_CASE("Without file descriptors connections wait until one is free") {
  Holder holder;
  Listener listener;
  REQUIRE(listener.Bind("--listen", "127.0.0.1:0").ok());
  listener.Start(holder.acceptor());
  const LoweredFileLimit limit(256);
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  std::vector<int> filler;
  for (int fd; (fd = dup(client)) >= 0;) filler.push_back(fd);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(listener.port()));
  REQUIRE(connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const Fate meanwhile = FateOf(client, 200);
  for (int fd : filler) close(fd);
  CHECK(meanwhile == Fate::kWaiting);
  CHECK(FateOf(client) == Fate::kTaken);
  close(client);
}

}  // namespace
}  // namespace quintet
