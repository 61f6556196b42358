// The places where kernels read LoRA adapters. A model has a fixed number of slots; DecodeBatch and
// EncodeBatch name an adapter by its slot. An adapter is put into a slot when a request needs it
// and stays there after the request, until another adapter needs the slot. Adapters to which only
// their slot refers are replaced first, so that few of them stay in memory; then those that have
// been unused for the longest time.
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
  // Makes `slot` hold `adapter`. No request uses the adapter that the slot held before.
  using Fill = std::function<void(int32_t slot, const AdapterHandle& adapter)>;

  AdapterSlots(int64_t slots, const AdapterLayout* layout, Fill fill);

  // Whether the adapter has this model's layout. Thread-safe.
  bool Accepts(const PackedAdapter& adapter) const;
  // Whether Take would succeed.
  bool CanTake(const PackedAdapter& adapter) const;
  // Returns a slot that holds the adapter until Return has been called as often as Take returned
  // it. Returns -1 if requests use all slots for other adapters.
  int32_t Take(const AdapterHandle& adapter);
  void Return(int32_t slot);

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
