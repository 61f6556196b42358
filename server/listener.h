// Listening sockets of the server's own, whose connections it hands to gRPC.
//
// gRPC 1.51's listener stops for good when accept() fails for want of file descriptors. This one
// keeps some in reserve (for the operator's endpoints and certificates): connections beyond are
// closed at once, so that their clients turn elsewhere, and new ones are taken as soon as old ones
// have gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/server_builder.h"

namespace quintet {

class Listener {
 public:
  Listener() = default;
  // Stops.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Binds every address that HOST:PORT stands for ("127.0.0.1:50051", "[::1]:0", "localhost:0"); no
  // other process may have the port. Clients that connect wait until Start. INVALID_ARGUMENT: no
  // such address, or it is taken.
  absl::Status Bind(const std::string& text);
  // Hands connections to `acceptor`, from a thread of its own, until Stop. After the gRPC server
  // has started; once.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // Connections handed over stay open.
  void Stop();

  int port() const { return port_; }

 private:
  struct Socket {
    int fd = -1;
    Socket() = default;
    explicit Socket(int descriptor) : fd(descriptor) {}
    Socket(Socket&& other) noexcept : fd(other.fd) { other.fd = -1; }
    Socket& operator=(Socket&&) = delete;
    ~Socket();
  };

  void Run();
  // Takes what waits at one socket. False: no descriptor is left, try again later.
  bool Accept(int listener);

  std::vector<Socket> sockets_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  int port_ = 0;
  bool full_ = false;  // connections were closed at once the last time
};

}  // namespace quintet
