#include "models/merged_weights.h"

#include "kernels/base/status_macros.h"
#include "kernels/linear/lora.h"
#include "kernels/runtime/device.h"

namespace quintet {

int64_t MergedWeights::Bytes(const AdapterPool& pool, const Stream& stream) {
  int64_t bytes = 0;
  for (const auto& [weight, lora] : pool.weights()) {
    if (!SupportsMergeLora(*weight, lora, stream)) return 0;
    bytes += weight->bytes();
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<MergedWeights>> MergedWeights::Allocate(AdapterPool* pool,
                                                                       const Stream& stream) {
  std::unique_ptr<MergedWeights> merged(new MergedWeights(pool, stream));
  for (const auto& [weight, lora] : pool->weights()) {
    QT_ASSIGN_OR_RETURN(merged->copies_[weight],
                        LinearWeight::Allocate(weight->n(), weight->k(), weight->type(),
                                               weight->gated(), &stream.device()));
  }
  QT_ASSIGN_OR_RETURN(merged->barrier_, stream.Allocate(sizeof(uint64_t)));
  return merged;
}

bool MergedWeights::Use(int32_t slot, int64_t calls) {
  if (Holds(slot)) {
    candidate_ = 0;
    return true;
  }
  const uint64_t id = pool_->slots().Id(slot);
  calls_ = id == candidate_ ? calls_ + calls : calls;
  candidate_ = id;
  if (calls_ < kCallsToMerge) return false;
  Merge(slot);
  merged_ = id;
  return true;
}

// Enqueues the merge behind the calls that read the adapter that the copy has held. GEMMs of few
// rows load weights before the previous kernel has ended (programmatic dependent launch), which
// only another kernel can allow; the write to barrier_ therefore makes them wait for the merge.
void MergedWeights::Merge(int32_t slot) {
  for (auto& [weight, copy] : copies_) {
    MergeLora(
        {.w = weight, .lora = pool_->Find(weight), .adapter = slot, .to = copy.mutable_panels()},
        stream_);
  }
  constexpr uint64_t kAny = 0;
  stream_.Write(&kAny, Tensor::Dense(barrier_.data(), DType::kI8, {sizeof(kAny)}));
}

const WeightView* MergedWeights::Find(const WeightView* weight) const {
  const auto found = copies_.find(weight);
  return found == copies_.end() ? weight : &found->second;
}

}  // namespace quintet
