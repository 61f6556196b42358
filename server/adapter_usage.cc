#include "server/adapter_usage.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quintet {

void AdapterUsage::SetAdapters(std::span<const AdapterSource> adapters) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const AdapterSource& adapter : adapters) adapters_.try_emplace(adapter.name);
  std::erase_if(adapters_, [&](const auto& known) {
    return known.second.waiting == 0 && known.second.running == 0 &&
           std::none_of(adapters.begin(), adapters.end(),
                        [&](const AdapterSource& adapter) { return adapter.name == known.first; });
  });
}

void AdapterUsage::Add(const std::string& adapter, const Requests& change) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = adapters_.find(adapter);
  if (found == adapters_.end()) return;
  found->second.waiting += change.waiting;
  found->second.running += change.running;
}

void AdapterUsage::Submitted(const std::string& adapter) { Add(adapter, {.waiting = 1}); }

void AdapterUsage::Started(const std::string& adapter) {
  Add(adapter, {.waiting = -1, .running = 1});
}

void AdapterUsage::Ended(const std::string& adapter, bool started) {
  Add(adapter, started ? Requests{.running = -1} : Requests{.waiting = -1});
}

AdapterUsage::Names AdapterUsage::names() const {
  Names names;
  size_t running = 0, waiting = 0;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, requests] : adapters_) {
    const auto add = [&name = name](int64_t count, size_t* listed, std::string* to) {
      if (count <= 0 || ++*listed > kMaxNames) return;
      absl::StrAppend(to, to->empty() ? "" : ",", name);
    };
    add(requests.running, &running, &names.running);
    add(requests.waiting, &waiting, &names.waiting);
  }
  return names;
}

}  // namespace quintet
