// The places where kernels read LoRA adapters. A model has a fixed number of slots; DecodeBatch and
// EncodeBatch name an adapter by its slot. An adapter is put into a slot when a request needs it
// and stays there after the request, until another adapter needs the slot. If nothing but its slot
// refers to an unused adapter, that adapter is replaced first, so that its memory is freed.
// Otherwise the adapter that has been unused for the longest time is replaced.
//
// Only the engine thread calls member functions, except Accepts. They allocate nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/model.h"

namespace quintet {

class AdapterSlots {
 public:
  // Function that puts `adapter` into `slot`. It is called only when no request uses the slot.
  using Fill = std::function<void(int32_t slot, const AdapterHandle& adapter)>;

  AdapterSlots(int64_t slots, const AdapterLayout* layout, Fill fill);

  // Whether the adapter has this model's layout. Thread-safe.
  bool Accepts(const PackedAdapter& adapter) const;
  // Whether Take would succeed.
  bool CanTake(const PackedAdapter& adapter) const;
  // Puts the adapter into a slot unless it is in one already, counts one more user of this slot,
  // and returns the slot. Return removes one user; the slot keeps the adapter while it has users.
  // Returns -1 if all slots have users and hold other adapters.
  int32_t Take(const AdapterHandle& adapter);
  void Return(int32_t slot);

  // The adapter in a slot, as PackedAdapter::id; 0: the slot is empty.
  uint64_t Id(int32_t slot) const { return slots_[static_cast<size_t>(slot)].id; }
  int64_t fills() const { return fills_; }  // calls of Fill so far

 private:
  struct Slot {
    AdapterHandle adapter;  // null: empty
    uint64_t id = 0;        // that of the adapter; 0: empty
    int64_t users = 0;
    int64_t used = 0;  // time_ of the last Take or Return
  };
  int32_t Find(uint64_t id) const;  // -1: no slot holds it
  int32_t Unused() const;           // the slot to fill next; -1: all are used

  const AdapterLayout* const layout_;
  const Fill fill_;
  std::vector<Slot> slots_;
  int64_t time_ = 0, fills_ = 0;
};

}  // namespace quintet
