// Real servers that serve the shipped model on free loopback ports. A server runs in this process,
// or in a child process if the test checks how the process ends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "quintet/v1/inference.grpc.pb.h"
#include "server/server.h"

namespace quintet {

int FreePort();

// Options of a server of the shipped model under the name "g2p", on two free ports.
ServerOptions TestOptions();

class RunningServer {
 public:
  // Returns when the server is ready. `change` may alter the options first.
  explicit RunningServer(const std::function<void(ServerOptions*)>& change = [](ServerOptions*) {});
  ~RunningServer();

  v1::Inference::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  const ServerOptions& options() const { return options_; }
  // The effects of SIGHUP and SIGTERM. Both functions return at once.
  void Reload() { signals_.reload = true; }
  void Terminate() { signals_.terminate = true; }
  // The effect of a second Ctrl-C.
  void Hurry() { signals_.skip_drain = true; }
  // Returns the body of an HTTP GET on the HTTP port, or "" if there is no response.
  std::string Get(const std::string& path) const;
  // Returns the same response with its status line and headers.
  std::string GetRaw(const std::string& path) const;
  // Returns the sum of the values of all metric lines that begin with `prefix` ("name{labels").
  double Metric(const std::string& prefix) const;
  // Sends the stop signal, waits for the end and returns the exit code.
  int Stop();

 private:
  ServerOptions options_;
  ServerSignals signals_;
  ServeOutcome outcome_;
  std::thread thread_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// This test program again, running only the hidden test case `name`, which finds the options' two
// addresses in the environment (ChildOptions) and serves until it ends.
class ChildServer {
 public:
  explicit ChildServer(const std::string& name);
  ~ChildServer();

  const ServerOptions& options() const { return options_; }
  void Signal(int signal) const;
  // Waits at most 60 s for the end. Returns the exit code, 128 + signal, or -1 on a timeout.
  int Wait();

 private:
  ServerOptions options_;
  int process_ = -1;
};
ServerOptions ChildOptions();

// Returns the body of an HTTP GET, or the whole response; "" if there is none.
std::string HttpGet(const std::string& address, const std::string& path, bool whole = false);

}  // namespace quintet
