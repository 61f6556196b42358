// Real servers that serve the shipped model on free loopback ports. A server runs in the process of
// the test, or in a child process if the test checks how the process ends.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "quintet/v1/inference.grpc.pb.h"
#include "server/server.h"

namespace quintet {

int FreePort();

// Returns the options of a server that serves the shipped model under the name "g2p", with a free
// gRPC port and a free HTTP port.
ServerOptions TestOptions();

class RunningServer {
 public:
  // Starts a server and returns when it is ready. `change` may alter the options before the start.
  explicit RunningServer(const std::function<void(ServerOptions*)>& change = [](ServerOptions*) {});
  ~RunningServer();

  v1::Inference::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  const ServerOptions& options() const { return options_; }
  // Reload acts like SIGHUP and Terminate like SIGTERM. Neither waits for the effect.
  void Reload() { signals_.reload = true; }
  void Terminate() { signals_.terminate = true; }
  // Has the effect of a second Ctrl-C: the server ends its drain immediately.
  void Hurry() { signals_.skip_drain = true; }
  // Returns the body of an HTTP GET on the HTTP port, or "" if there is no response.
  std::string Get(const std::string& path) const;
  // Like Get, but returns the whole response: status line, headers and body.
  std::string GetRaw(const std::string& path) const;
  // Fetches /metrics and returns the sum of the values of all lines that begin with `prefix`, for
  // example `name{label="x"`.
  double Metric(const std::string& prefix) const;
  // Stops the server as SIGTERM does, waits for its end and returns its exit code.
  int Stop();

 private:
  ServerOptions options_;
  ServerSignals signals_;
  ServeOutcome outcome_;
  std::thread thread_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// A server in a child process. The child runs this test program with the single test case `name`,
// which is hidden: a run of all tests leaves it out. That test case reads the gRPC and the HTTP
// listen address from the environment (ChildOptions) and serves until its process ends.
class ChildServer {
 public:
  explicit ChildServer(const std::string& name);
  ~ChildServer();

  const ServerOptions& options() const { return options_; }
  void Signal(int signal) const;
  // Waits at most 60 s for the child process to end. Returns its exit code, 128 + the number of the
  // signal that killed it, or -1 on a timeout.
  int Wait();

 private:
  ServerOptions options_;
  int process_ = -1;
};
ServerOptions ChildOptions();

// Makes an HTTP GET request. Returns the body of the response, or with `whole` the status line,
// headers and body; "" if there is no response.
std::string HttpGet(const std::string& address, const std::string& path, bool whole = false);

}  // namespace quintet
