#include "server/adapter_registry.h"

#include <algorithm>
#include <utility>

#include "models/adapter_layout.h"
#include "models/adapter_pool.h"
#include "models/adapters/adapter_files.h"

namespace quintet {

std::shared_ptr<const AdapterRegistry::Adapters> AdapterRegistry::adapters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return adapters_;
}

void AdapterRegistry::Set(std::vector<AdapterHandle> adapters) {
  std::vector<AdapterSource> sources;
  auto by_name = std::make_shared<Adapters>();
  for (AdapterHandle& adapter : adapters) {
    sources.push_back(adapter->source);
    by_name->emplace(adapter->source.name, std::move(adapter));
  }
  std::shared_ptr<const Adapters> other = std::move(by_name);  // those before are released unlocked
  std::lock_guard<std::mutex> lock(mutex_);
  other.swap(adapters_);
  sources_ = std::move(sources);
}

absl::StatusOr<AdapterHandle> AdapterRegistry::Find(const std::string& name) const {
  const std::shared_ptr<const Adapters> all = adapters();
  const auto found = all->find(name);
  if (found != all->end()) return found->second;
  return FindAdapter(sources(), name).status();
}

std::vector<AdapterSource> AdapterRegistry::sources() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sources_;
}

std::vector<AdapterHandle> AdapterRegistry::Unchanged(
    std::span<const AdapterSource> sources) const {
  const std::shared_ptr<const Adapters> all = adapters();
  std::vector<AdapterHandle> unchanged;
  for (const AdapterSource& source : sources) {
    const auto found = all->find(source.name);
    const bool same = found != all->end() && found->second->source == source &&
                      found->second->stamp == StampAdapter(source.path);
    unchanged.push_back(same ? found->second : nullptr);
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
  for (const auto& [name, adapter] : *adapters()) bytes += adapter->size.bytes;
  return bytes;
}

}  // namespace quintet
