#include "engine/adapter_registry.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "models/adapter_layout.h"
#include "models/adapter_pool.h"
#include "models/adapters/adapter_files.h"

namespace quintet {

std::shared_ptr<const AdapterRegistry::Adapters> AdapterRegistry::adapters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return adapters_;
}

AdapterHandle AdapterRegistry::FindIn(const Adapters& adapters, const std::string& name) {
  const auto found =
      std::find_if(adapters.begin(), adapters.end(),
                   [&](const AdapterHandle& adapter) { return adapter->source.name == name; });
  return found == adapters.end() ? nullptr : *found;
}

void AdapterRegistry::Set(std::vector<AdapterHandle> adapters) {
  // After the swap `other` holds the previous adapters. They are released after the lock, because
  // releasing them may take long.
  std::shared_ptr<const Adapters> other = std::make_shared<const Adapters>(std::move(adapters));
  std::lock_guard<std::mutex> lock(mutex_);
  other.swap(adapters_);
}

absl::Status AdapterRegistry::Put(AdapterHandle adapter) {
  std::lock_guard<std::mutex> changing(changes_);
  Adapters changed = *adapters();
  std::vector<AdapterSource> sources;
  const auto same = [&](const AdapterHandle& other) {
    return other->source.name == adapter->source.name;
  };
  std::erase_if(changed, same);
  changed.push_back(std::move(adapter));
  for (const AdapterHandle& one : changed) sources.push_back(one->source);
  QT_RETURN_IF_ERROR(CheckAdapterNames(sources));
  Set(std::move(changed));
  return absl::OkStatus();
}

absl::Status AdapterRegistry::Remove(const std::string& name) {
  std::lock_guard<std::mutex> changing(changes_);
  QT_ASSIGN_OR_RETURN(const AdapterHandle removed, Find(name));
  Adapters changed = *adapters();
  std::erase(changed, removed);
  Set(std::move(changed));
  return absl::OkStatus();
}

absl::StatusOr<AdapterHandle> AdapterRegistry::Find(const std::string& name) const {
  AdapterHandle found = FindIn(*adapters(), name);
  if (found != nullptr) return found;
  return FindAdapter(sources(), name).status();
}

std::vector<AdapterSource> AdapterRegistry::sources() const {
  std::vector<AdapterSource> sources;
  for (const AdapterHandle& adapter : *adapters()) sources.push_back(adapter->source);
  return sources;
}

std::vector<AdapterHandle> AdapterRegistry::Unchanged(
    std::span<const AdapterSource> sources) const {
  const std::shared_ptr<const Adapters> all = adapters();
  std::vector<AdapterHandle> unchanged;
  for (const AdapterSource& source : sources) {
    const AdapterHandle found = FindIn(*all, source.name);
    const bool same =
        found != nullptr && found->source == source && found->stamp == StampAdapter(source.path);
    unchanged.push_back(same ? found : nullptr);
  }
  return unchanged;
}

bool AdapterRegistry::HasExactly(std::span<const AdapterSource> sources) const {
  if (sources.size() != adapters()->size()) return false;
  const std::vector<AdapterHandle> unchanged = Unchanged(sources);
  return std::find(unchanged.begin(), unchanged.end(), nullptr) == unchanged.end();
}

int64_t AdapterRegistry::bytes() const {
  int64_t bytes = 0;
  for (const AdapterHandle& adapter : *adapters()) bytes += adapter->size.bytes;
  return bytes;
}

}  // namespace quintet
