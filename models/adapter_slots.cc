#include "models/adapter_slots.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "models/adapter_layout.h"

namespace quintet {

AdapterSlots::AdapterSlots(int64_t slots, const AdapterLayout* layout, Fill fill)
    : layout_(layout), fill_(std::move(fill)), slots_(static_cast<size_t>(slots)) {}

bool AdapterSlots::Accepts(const PackedAdapter& adapter) const {
  return adapter.layout.get() == layout_;
}

int32_t AdapterSlots::Find(uint64_t id) const {
  const auto found =
      std::find_if(slots_.begin(), slots_.end(), [id](const Slot& slot) { return slot.id == id; });
  return found == slots_.end() ? -1 : static_cast<int32_t>(found - slots_.begin());
}

int32_t AdapterSlots::Unused() const {
  int32_t oldest = -1;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].users > 0) continue;
    if (slots_[i].adapter.use_count() == 1) return static_cast<int32_t>(i);
    if (oldest < 0 || slots_[i].used < slots_[oldest].used) oldest = static_cast<int32_t>(i);
  }
  return oldest;
}

bool AdapterSlots::CanTake(const PackedAdapter& adapter) const {
  return Find(adapter.id) >= 0 || Unused() >= 0;
}

int32_t AdapterSlots::Take(const AdapterHandle& adapter) {
  int32_t at = Find(adapter->id);
  if (at < 0) {
    at = Unused();
    if (at < 0) return -1;
    QT_CHECK(Accepts(*adapter));
    fill_(at, adapter);
    ++fills_;
    slots_[at].adapter = adapter;
    slots_[at].id = adapter->id;
  }
  Slot& slot = slots_[at];
  ++slot.users;
  slot.used = ++time_;
  return at;
}

void AdapterSlots::Return(int32_t slot) {
  Slot& used = slots_[slot];
  QT_CHECK(used.users > 0);
  --used.users;
  used.used = ++time_;
}

}  // namespace quintet
