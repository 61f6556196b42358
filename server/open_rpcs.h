// The RPCs that gRPC has not finished yet: limits on their number, for the process and for each
// connection, and time limits on clients that make no progress. Thread safe.
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

class OpenRpcs {
 public:
  // Long-lived RPCs are those that a client may keep open without a request in progress: streams
  // of requests and health watches.
  struct Limits {
    int64_t open = 8192;
    int64_t long_lived = 1024;
    int64_t long_lived_of_connection = 256;
  };

  // One RPC's share of the limits, given back on destruction.
  class Place {
   public:
    Place(Place&&) noexcept = default;
    ~Place();
    // Bytes that the calls of this RPC's connection hold.
    std::shared_ptr<ConnectionBytes> connection_bytes() const {
      return {connection_, &connection_->bytes};
    }

   private:
    friend class OpenRpcs;
    struct Connection {
      ConnectionBytes bytes{0};
      int64_t long_lived = 0;  // guarded by the owner's mutex
    };
    Place(OpenRpcs* owner, bool long_lived, std::shared_ptr<Connection> connection)
        : owner_(owner), long_lived_(long_lived), connection_(std::move(connection)) {}

    OpenRpcs* owner_;
    bool long_lived_;
    std::shared_ptr<Connection> connection_;  // null: moved from
  };

  OpenRpcs() : OpenRpcs(Limits()) {}
  explicit OpenRpcs(const Limits& limits) : limits_(limits) {}
  OpenRpcs(const OpenRpcs&) = delete;
  OpenRpcs& operator=(const OpenRpcs&) = delete;

  // `peer` names the connection. RESOURCE_EXHAUSTED when a limit is reached.
  absl::StatusOr<Place> Enter(const std::string& peer, bool long_lived);

  // `rpc` is watched from now on, until Remove.
  void Add(Rpc* rpc);
  void Remove(Rpc* rpc);

  int64_t count() const;
  // RPCs with a request in progress or output that the client has yet to take.
  int64_t working() const;

  // Looks after clients that are too slow. Called once a second.
  void Check(int64_t now_us);
  // From now on RPCs that only wait for their client are ended UNAVAILABLE, at the next Check.
  void Drain() { draining_ = true; }
  // An engine is stuck and the process will end: ends every RPC without it.
  void AbandonAll();

 private:
  const Limits limits_;
  std::atomic<bool> draining_{false};
  mutable std::mutex mutex_;
  std::unordered_set<Rpc*> rpcs_;
  int64_t open_ = 0, long_lived_ = 0;  // places given
  std::unordered_map<std::string, std::weak_ptr<Place::Connection>> connections_;
};

}  // namespace quintet
