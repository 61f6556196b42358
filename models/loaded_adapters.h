// The LoRA adapters of a loaded model, in the layout and the memory that AddLora reads
// (kernels/linear/lora.h). Immutable after loading.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/lora.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "models/config/config.h"
#include "models/model.h"
#include "models/weights/weights.h"

namespace quintet {

constexpr size_t kMaxAdapters = 1024;  // of one model
constexpr size_t kMaxAdapterNameBytes = 256;

// INVALID_ARGUMENT: more than kMaxAdapters adapters, a name twice, or a name that is empty, longer
// than kMaxAdapterNameBytes, not UTF-8, or contains a control character or a colon.
absl::Status CheckAdapterNames(std::span<const AdapterSource> sources);
// Returns the index of the adapter `name` in `sources`. NOT_FOUND: there is none; the message names
// those that there are.
absl::StatusOr<int32_t> FindAdapter(std::span<const AdapterSource> sources,
                                    const std::string& name);

class LoadedAdapters {
 public:
  // No adapters.
  LoadedAdapters() = default;
  // Reads the adapters and copies their factors to memory of the stream's backend, converted to
  // `dtype` (that of activations). `weights` must outlive this object and keep its address. If
  // `describe` is true, no memory is allocated for factors; bytes() and the sizes in LoraWeight are
  // set nevertheless. Errors: those of ReadAdapter, with the adapter's name and path, and
  // INVALID_ARGUMENT: a factor is beyond the range of `dtype`; UNIMPLEMENTED: an
  // adapter changes a head; RESOURCE_EXHAUSTED: not enough memory.
  static absl::StatusOr<LoadedAdapters> Load(std::span<const AdapterSource> sources,
                                             const ModelConfig& config, const ModelWeights& weights,
                                             DType dtype, bool follow_symlinks, bool describe,
                                             const Stream& stream);

  int64_t size() const { return size_; }
  // Size in bytes of the factors and of the table with their addresses.
  int64_t bytes() const { return bytes_; }
  // Size in bytes of the largest adapter's factors as they are read: in host memory, in f32.
  int64_t reading_bytes() const { return reading_bytes_; }
  // The factors for a weight of the model; null if no adapter changes this weight.
  const LoraWeight* Find(const WeightView* weight) const;
  const std::unordered_map<const WeightView*, LoraWeight>& weights() const { return weights_; }

 private:
  // Sets table_ and adds its size to bytes_.
  absl::Status StoreTable(const std::vector<LoraPart>& table, const std::vector<uint64_t>& counters,
                          bool describe, const Stream& stream);

  int64_t size_ = 0, bytes_ = 0, reading_bytes_ = 0;
  std::unordered_map<const WeightView*, LoraWeight> weights_;
  std::vector<Buffer> factors_;  // of each adapter
  Buffer table_;  // LoraPart [size_, parts of all weights], then a LoraWeight::counter for each
};

}  // namespace quintet
