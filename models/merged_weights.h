// A copy of the weights that LoRA adapters change, with the terms of one adapter added to it
// (W + b a). Calls in which every row has this adapter read the copy and take no longer than
// without an adapter. Only on a GPU, with 16-bit weights.
//
// Merging reads and writes all these weights. Therefore an adapter replaces the one in the copy
// only after several calls with it, and none with the adapter in the copy. Only the engine thread
// calls member functions.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear/weight.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "models/adapter_pool.h"

namespace quintet {

class MergedWeights {
 public:
  // Bytes of the copy; 0 if the model can have none.
  static int64_t Bytes(const AdapterPool& pool, const Stream& stream);
  // Allocates the copy. `pool` must outlive it. RESOURCE_EXHAUSTED: not enough device memory.
  static absl::StatusOr<std::unique_ptr<MergedWeights>> Allocate(AdapterPool* pool,
                                                                 const Stream& stream);

  // Must be called once for each call in which every row has the adapter in `slot` (AdapterSlots);
  // `calls` says how many calls it counts as. Returns whether the copy holds the adapter. After
  // kCallsToMerge such calls with the same adapter, enqueues its merge and returns true.
  bool Use(int32_t slot, int64_t calls);
  // Whether the copy holds the adapter in `slot`.
  bool Holds(int32_t slot) const { return merged_ != 0 && pool_->slots().Id(slot) == merged_; }
  static constexpr int64_t kCallsToMerge = 32;
  // Returns the copy of a weight, or `weight` itself if adapters do not change it.
  const WeightView* Find(const WeightView* weight) const;

 private:
  MergedWeights(AdapterPool* pool, const Stream& stream) : pool_(pool), stream_(stream) {}
  void Merge(int32_t slot);

  AdapterPool* const pool_;
  Stream stream_;
  std::unordered_map<const WeightView*, LinearWeight> copies_;
  Buffer barrier_;          // see Merge
  uint64_t merged_ = 0;     // id of the adapter in the copy (AdapterSlots::Id); 0: none
  uint64_t candidate_ = 0;  // id of the adapter of the latest calls
  int64_t calls_ = 0;       // number of these calls
};

}  // namespace quintet
