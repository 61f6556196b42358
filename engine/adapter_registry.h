// The LoRA adapters of a loaded model by name. Adapters may be added, replaced and removed while
// requests run; a running request keeps the adapter with which it started. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model.h"

namespace quintet {

class AdapterRegistry {
 public:
  void Set(std::vector<AdapterHandle> adapters);
  // Adds an adapter, or replaces the one of the same name. Returns INVALID_ARGUMENT if its
  // name is invalid or there would be too many adapters (CheckAdapterNames).
  absl::Status Put(AdapterHandle adapter);
  // NOT_FOUND: there is no adapter of this name.
  absl::Status Remove(const std::string& name);
  // NOT_FOUND: there is no adapter of this name; the message lists the existing adapters.
  absl::StatusOr<AdapterHandle> Find(const std::string& name) const;
  std::vector<AdapterSource> sources() const;
  std::vector<AdapterHandle> handles() const { return *adapters(); }  // in the same order
  // Returns one element for each of `sources`: the adapter with this name and path, or null if
  // there is no such adapter or its files have changed since it was read.
  std::vector<AdapterHandle> Unchanged(std::span<const AdapterSource> sources) const;
  // Whether there is an unchanged adapter (see Unchanged) for each of `sources`, and no other
  // adapter.
  bool HasExactly(std::span<const AdapterSource> sources) const;
  // Bytes of host memory of the factors of all adapters.
  int64_t bytes() const;

 private:
  using Adapters = std::vector<AdapterHandle>;
  std::shared_ptr<const Adapters> adapters() const;
  static AdapterHandle FindIn(const Adapters& adapters, const std::string& name);  // or null

  mutable std::mutex mutex_;  // guards adapters_
  std::mutex changes_;        // held while a change is made
  std::shared_ptr<const Adapters> adapters_ = std::make_shared<const Adapters>();
};

}  // namespace quintet
