// grpc.health.v1.Health: Check and Watch of the server and of each service.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/methods.h"

namespace quintet {

// Whether the server takes calls, and the watches to notify when that changes. Thread safe;
// outlives the RPCs.
class HealthStatus {
 public:
  void SetServing(bool serving);
  bool serving() const;
  // The server as a whole ("") or quintet.v1.Inference.
  static bool IsKnown(const std::string& service);

  // `watch` is woken at every change until Remove.
  void Add(Rpc* watch);
  void Remove(Rpc* watch);

 private:
  mutable std::mutex mutex_;
  bool serving_ = false;
  std::set<Rpc*> watches_;
};

// Health needs no API key.
std::vector<Method> HealthMethods(HealthStatus* status);

}  // namespace quintet
