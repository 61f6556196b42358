// Real servers on free ports of the loopback interface, serving the shipped model: in this process,
// or in one of their own where the end of the process is what a test is about.
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
  // What SIGHUP and SIGTERM do; nothing here waits.
  void Reload() { signals_.reload = true; }
  void Terminate() { signals_.terminate = true; }
  // What a second Ctrl-C does.
  void Hurry() { signals_.hurry = true; }
  // Body of an HTTP GET on the operator's port; "" when there is no answer.
  std::string Get(const std::string& path) const;
  // The same with its status line and headers.
  std::string GetRaw(const std::string& path) const;
  // Value of a metric's line ("name{labels}" up to the value), summed over lines that begin with
  // `prefix`.
  double Metric(const std::string& prefix) const;
  // Signals, waits, and returns the exit code.
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
  // Waits for its end, 60 s at most: the exit code, 128 + signal, or -1.
  int Wait();

 private:
  ServerOptions options_;
  int process_ = -1;
};
ServerOptions ChildOptions();

// Body of an HTTP GET, or the whole answer; "" when there is none.
std::string HttpGet(const std::string& address, const std::string& path, bool whole = false);

}  // namespace quintet
