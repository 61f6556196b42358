// The LoRA adapters that calls of one model version can name. They change while the version serves;
// a call keeps the adapter that it has found until it ends. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/model.h"

namespace quintet {

class AdapterRegistry {
 public:
  void Set(std::vector<AdapterHandle> adapters);
  // NOT_FOUND: there is no such adapter; the message names those that there are.
  absl::StatusOr<AdapterHandle> Find(const std::string& name) const;
  std::vector<AdapterSource> sources() const;
  // Returns the adapter that was read from each of `sources`, or null if there is none with this
  // name and path or its files have changed since.
  std::vector<AdapterHandle> Unchanged(std::span<const AdapterSource> sources) const;
  // Whether calls can name the adapters of `sources`, with the contents that their files have now,
  // and no others.
  bool HasExactly(std::span<const AdapterSource> sources) const;
  // Bytes of host memory of the factors of all adapters.
  int64_t bytes() const;

 private:
  using Adapters = std::map<std::string, AdapterHandle>;  // by name
  std::shared_ptr<const Adapters> adapters() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Adapters> adapters_ = std::make_shared<const Adapters>();
  std::vector<AdapterSource> sources_;
};

}  // namespace quintet
