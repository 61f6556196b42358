// Which LoRA adapters the waiting and the running requests of a model use, for gateways that send
// requests to a server that has their adapter ready (the model server protocol of the Gateway API
// inference extension). Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>

#include "models/model.h"

namespace quintet {

class AdapterUsage {
 public:
  // Sets the adapters that requests can name. Must be called before requests name a new one. Other
  // adapters stay known while requests use them. Throws std::bad_alloc.
  void SetAdapters(std::span<const AdapterSource> adapters);

  // The three functions below ignore unknown adapters and allocate nothing. A request is submitted,
  // started unless it ends in the queue, and ended. The order in which threads report that is free.
  void Submitted(const std::string& adapter);
  void Started(const std::string& adapter);
  void Ended(const std::string& adapter, bool started);

  // Names in alphabetical order, separated by commas; at most kMaxNames of each.
  struct Names {
    std::string running, waiting;
  };
  Names names() const;
  static constexpr size_t kMaxNames = 100;

 private:
  struct Requests {
    int64_t waiting = 0, running = 0;
  };
  void Add(const std::string& adapter, const Requests& change);

  mutable std::mutex mutex_;
  std::map<std::string, Requests> adapters_;
};

}  // namespace quintet
