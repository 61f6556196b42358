// The listening sockets of a gRPC port. The server accepts connections itself and passes them to
// gRPC.
//
// The listener of gRPC 1.51 stops forever if accept() fails for lack of file descriptors. This
// listener therefore leaves some descriptor numbers free for the HTTP endpoints and the certificate
// files. A connection that would take one of them is closed at once, so that its client can try
// another server. New connections are accepted again as soon as other descriptors are free.
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
  // Calls Stop.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Binds every address that HOST:PORT resolves to ("127.0.0.1:50051", "[::1]:0", "localhost:0").
  // The port is not shared with other processes. Clients that connect wait until Start. Returns
  // INVALID_ARGUMENT, which names `flag`, if the address does not exist or is in use.
  absl::Status Bind(const std::string& flag, const std::string& text);
  // Starts a thread that passes connections to `acceptor` until Stop. Must be called once, after
  // the gRPC server has started.
  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // Closes the listening sockets. Connections that gRPC already has stay open.
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
  // Accepts all pending connections of one listening socket. Returns false if the process has no
  // descriptor or memory left; the caller must try again later.
  bool Accept(int listener);

  std::vector<Socket> sockets_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  int port_ = 0;
  bool full_ = false;  // the last accepted connection was closed at once
};

}  // namespace quintet
