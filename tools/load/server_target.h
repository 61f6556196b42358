// A load target that is a running server, reached by one of its protocols. To add a protocol:
// implement ServerTarget and add a line to Protocols().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/load/driver.h"

namespace quintet {

enum class LoadPriority : uint8_t { kLow = 1, kNormal = 2, kHigh = 3 };

struct ServerTargetOptions {
  std::string address;  // HOST:PORT
  std::string model;    // empty: the only model of the server
  int channels = 1;     // gRPC: number of connections, used round-robin
  bool stream = true;
  double timeout_s = 60;  // timeout of each request and, up to 10 s, of connecting
  int attempts = 1;       // more than 1: gRPC retries UNAVAILABLE
  LoadPriority priority = LoadPriority::kNormal;
};

// What the server reports about the model to which the load generator sends its requests.
struct ServerInfo {
  nlohmann::ordered_json conditions;  // "model", "version", "dtype", ..., for reports
  int64_t vocab = 0;
};

class ServerTarget : public LoadTarget {
 public:
  const ServerInfo& info() const { return info_; }

 protected:
  ServerInfo info_;
};

struct Protocol {
  const char* name;         // "grpc", for --protocol
  const char* description;  // "quintet.v1 over gRPC"
  bool retries;             // supports ServerTargetOptions::attempts
  // Connects and reads the ServerInfo. Returns DEADLINE_EXCEEDED or UNAVAILABLE if no server
  // answers, and otherwise the errors of the server.
  absl::StatusOr<std::unique_ptr<ServerTarget>> (*connect)(const ServerTargetOptions& options);
};
// All protocols.
const std::vector<Protocol>& Protocols();

// Returns the protocol of this name, which must exist.
const Protocol& ProtocolOf(const std::string& name);

}  // namespace quintet
