// A real server in this process, on free ports of the loopback interface, serving the shipped
// model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "quintet/v1/inference.grpc.pb.h"
#include "server/server.h"

namespace quintet {

class RunningServer {
 public:
  // Returns when the server is ready. `change` may alter the options first.
  explicit RunningServer(const std::function<void(ServerOptions*)>& change = [](ServerOptions*) {});
  ~RunningServer();

  v1::Inference::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  // Body of an HTTP GET on the operator's port; "" when there is no answer.
  std::string Get(const std::string& path) const;
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

}  // namespace quintet
