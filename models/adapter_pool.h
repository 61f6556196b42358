// The LoRA adapters of a loaded model: those that were loaded with it, and the slots from which
// AddLora reads (kernels/linear/lora.h). On a GPU a slot has device memory for one adapter, and
// filling it enqueues a copy of the factors; on a CPU it refers to the factors in host memory.
//
// The adapters that are loaded with the model determine the bytes of a slot, the weights with LoRA
// terms and the largest rank of each. An adapter that is read later must fit these limits. Only the
// engine thread calls member functions, except Read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/lora.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "models/adapter_layout.h"
#include "models/adapter_slots.h"
#include "models/config/config.h"
#include "models/model.h"
#include "models/weights/weights.h"

namespace quintet {

constexpr size_t kMaxAdapters = 1024;  // of one model
constexpr size_t kMaxAdapterNameBytes = 256;

// INVALID_ARGUMENT: more than kMaxAdapters adapters, a name twice, or a name that is empty, longer
// than kMaxAdapterNameBytes, not UTF-8, or contains a control character or a colon.
absl::Status CheckAdapterNames(std::span<const AdapterSource> sources);
// Returns the index of the adapter `name` in `sources`. NOT_FOUND: there is none; the message lists
// the names in `sources`.
absl::StatusOr<int32_t> FindAdapter(std::span<const AdapterSource> sources,
                                    const std::string& name);

class AdapterPool {
 public:
  struct Options {
    std::vector<AdapterSource> sources;  // not empty
    int64_t slots = 0;                   // 0: one for each source
    bool follow_symlinks = false;
    // True: Load computes the sizes, but allocates no memory for factors and slots.
    bool describe = false;
    // The pool of another model with the same sources; null: none. Load then reads no adapters, and
    // both pools take the same handles.
    const AdapterPool* replica_of = nullptr;
  };
  // Loads the adapters. `dtype` is the dtype of activations. `weights` must outlive the pool and
  // keep its address. Errors: those of CheckAdapterNames and PackAdapter.
  static absl::StatusOr<std::unique_ptr<AdapterPool>> Load(const Options& options,
                                                           const ModelConfig& config,
                                                           const ModelWeights& weights, DType dtype,
                                                           const Stream& stream);
  ~AdapterPool();
  AdapterPool(const AdapterPool&) = delete;
  AdapterPool& operator=(const AdapterPool&) = delete;

  // Reads a further adapter. Thread-safe. Errors: those of PackAdapter; FAILED_PRECONDITION if it
  // does not fit the slots.
  absl::StatusOr<AdapterHandle> Read(const AdapterSource& source) const;

  // The adapters that were loaded with the model, in the order of Options::sources. TakeLoaded
  // returns them and leaves none.
  std::span<const AdapterHandle> loaded() const { return loaded_; }
  std::vector<AdapterHandle> TakeLoaded() { return std::exchange(loaded_, {}); }
  AdapterSlots& slots() { return slots_; }
  int64_t slot_count() const { return slot_count_; }

  // Bytes of the slots and of the table with the addresses of factors. On a CPU this includes the
  // bytes of the loaded adapters.
  int64_t bytes() const { return bytes_; }
  // GPU: bytes of host memory of the loaded adapters.
  int64_t host_bytes() const { return host_bytes_; }
  // Bytes of host memory that the factors of the largest adapter take while it is read.
  int64_t reading_bytes() const { return room_.reading_bytes; }
  // The LoRA terms of a weight of the model; null if no adapter can change this weight.
  const LoraWeight* Find(const WeightView* weight) const;
  const std::unordered_map<const WeightView*, LoraWeight>& weights() const { return weights_; }

 private:
  AdapterPool(const Options& options, const ModelConfig& config, DType dtype, const Stream& stream);

  // Sets room_ and the sizes to what the sources need.
  absl::Status Measure();
  absl::Status ReadSources();
  absl::Status AllocateSlots();
  // Sets weights_. The addresses in it are null if no slots were allocated.
  void DescribeWeights(const ModelWeights& weights);
  void Fill(int32_t slot, const AdapterHandle& adapter);
  LoraPart* Row(int32_t slot) const { return table_.as<LoraPart>() + slot * layout_->stride; }

  const Options options_;
  const ModelConfig config_;
  const Stream stream_;
  const std::shared_ptr<const AdapterLayout> layout_;
  const int64_t slot_count_;
  AdapterSize room_;  // for each adapter
  int64_t bytes_ = 0, host_bytes_ = 0;
  std::vector<AdapterHandle> loaded_;
  std::unordered_map<const WeightView*, LoraWeight> weights_;
  Buffer factors_;                // GPU: [slot_count_, room_.bytes]
  Buffer table_;                  // LoraPart [slot_count_, layout_->stride], pinned
  Buffer counters_;               // LoraWeight::counter of each parameter
  std::vector<int64_t> uploads_;  // [slot_count_] the latest upload (Stream::CopyH2D) of the row
  AdapterSlots slots_;
};

}  // namespace quintet
