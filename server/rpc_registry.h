// Registry of the RPCs that gRPC has not finished. Limits their number, for the process and for
// each connection, and ends RPCs whose clients make no progress. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/status/statusor.h"
#include "server/memory_budget.h"

namespace quintet {

class Rpc;

class RpcRegistry {
 public:
  // Maximum numbers of open RPCs. Long-lived RPCs are those that may stay open without a request in
  // progress: client streams (EncodeStream, reflection) and health watches.
  struct Limits {
    int64_t open = 8192;                     // all RPCs of the process
    int64_t long_lived = 1024;               // long-lived RPCs of the process
    int64_t long_lived_of_connection = 256;  // long-lived RPCs of one connection
  };

  // The registration of one RPC. While it exists, the RPC counts towards the limits.
  class Registration {
   public:
    Registration(Registration&&) noexcept = default;
    ~Registration();
    // The bytes that the calls of this RPC's connection have reserved.
    std::shared_ptr<ConnectionBytes> connection_bytes() const {
      return {connection_, &connection_->bytes};
    }

   private:
    friend class RpcRegistry;
    struct Connection {
      ConnectionBytes bytes{0};
      int64_t long_lived = 0;  // guarded by owner_->mutex_
    };
    Registration(RpcRegistry* owner, bool long_lived, std::shared_ptr<Connection> connection)
        : owner_(owner), long_lived_(long_lived), connection_(std::move(connection)) {}

    RpcRegistry* owner_;
    bool long_lived_;
    std::shared_ptr<Connection> connection_;  // null: moved from
  };

  RpcRegistry() : RpcRegistry(Limits()) {}
  explicit RpcRegistry(const Limits& limits) : limits_(limits) {}
  RpcRegistry(const RpcRegistry&) = delete;
  RpcRegistry& operator=(const RpcRegistry&) = delete;

  // Registers an RPC. `peer` identifies the connection. Returns RESOURCE_EXHAUSTED if a limit on
  // open RPCs is reached.
  absl::StatusOr<Registration> Admit(const std::string& peer, bool long_lived);

  // Check applies the time limits to `rpc` from the call of Add until the call of Remove.
  void Add(Rpc* rpc);
  void Remove(Rpc* rpc);

  // Number of RPCs between Add and Remove.
  int64_t count() const;
  // Number of RPCs that have a request in progress or output that the client has not read.
  int64_t working() const;

  // Ends the RPCs whose clients have exceeded a time limit. Called once a second.
  void Check(int64_t now_us);
  // Makes every later Check end the RPCs that have no request in progress (idle streams, health
  // watches) with UNAVAILABLE.
  void Drain() { draining_ = true; }
  // Ends every RPC without waiting for the engine. Called when an engine is stuck, before the
  // process exits.
  void AbandonAll();

 private:
  const Limits limits_;
  std::atomic<bool> draining_{false};
  mutable std::mutex mutex_;
  std::unordered_set<Rpc*> rpcs_;
  int64_t open_ = 0, long_lived_ = 0;  // number of registrations
  std::unordered_map<std::string, std::weak_ptr<Registration::Connection>> connections_;
};

}  // namespace quintet
