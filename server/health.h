// The service grpc.health.v1.Health: Check and Watch for the server ("") and for its two services,
// quintet.v1.Inference and inference.GRPCInferenceService.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "server/methods.h"

namespace quintet {

// The serving status of the server, and the list of Watch RPCs that are notified of its changes.
// Thread-safe. Must outlive all RPCs.
class HealthStatus {
 public:
  void SetServing(bool serving);
  bool serving() const;
  // Returns true for "" (the whole server), "quintet.v1.Inference" and
  // "inference.GRPCInferenceService".
  static bool IsKnown(const std::string& service);

  // After Add and until Remove, every change of the status causes a call of watch->Wake().
  void Add(Rpc* watch);
  void Remove(Rpc* watch);

 private:
  mutable std::mutex mutex_;
  bool serving_ = false;
  std::set<Rpc*> watches_;
};

// Returns the methods of the service. Health checks need no API key.
std::vector<Method> HealthMethods(HealthStatus* status);

}  // namespace quintet
