// How a loaded model stores the factors of LoRA adapters: the layout that AddLora reads
// (kernels/linear/lora.h). PackAdapter converts an adapter to this layout, in host memory;
// AdapterPool (models/adapter_pool.h) puts it where the kernels read it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/tensor.h"
#include "kernels/linear/lora.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/stream.h"
#include "models/adapters/adapter_files.h"
#include "models/config/config.h"
#include "models/model.h"

namespace quintet {

// The layout of one loaded model. Immutable.
struct AdapterLayout {
  // A parameter that adapters can change (WeightSlot::name). It is divided into `parts` ranges of
  // part_rows rows, such that each linear module consists of whole parts.
  struct Parameter {
    int64_t part_rows = 0, parts = 0, columns = 0;
    int64_t first = 0;  // the parameter's first part, as an index of an adapter's LoraParts
  };

  AdapterLayout() = default;
  AdapterLayout(const ModelConfig& config, DType dtype, Backend backend);
  // Returns LoraPart::rank for factors whose rank in the file is `rank`: on a GPU it is rounded up
  // to a multiple of kLoraRankMultiple.
  int64_t StoredRank(int64_t rank) const;

  std::map<std::string, Parameter> parameters;
  int64_t stride = 0;  // number of an adapter's LoraParts
  DType dtype = DType::kF32;
  Backend backend = Backend::kCpu;
};

struct AdapterSize {
  int64_t bytes = 0;                     // of the factors as they are stored
  int64_t reading_bytes = 0;             // of host memory for the factors while they are read
  std::map<std::string, int64_t> ranks;  // stored rank of each parameter that the adapter changes

  void TakeMax(const AdapterSize& other);  // of each number
};

// A LoRA adapter in host memory, in the layout of a model. Immutable after PackAdapter.
struct PackedAdapter {
  // The factors A and B of one part of a parameter. `a`, `b`: their offsets in bytes in `factors`.
  struct Part {
    int64_t index = 0;  // of the adapter's LoraParts
    int64_t a = 0, b = 0, rank = 0;
  };

  PackedAdapter();
  // Fills `row`, an array of layout->stride LoraParts, with the addresses and ranks of the factors.
  // `base`: address of `factors`, or of a copy of it.
  void FillRow(const char* base, LoraPart* row) const;

  const uint64_t id;  // another one for each PackedAdapter of the process; never 0
  std::shared_ptr<const AdapterLayout> layout;
  AdapterSource source;
  AdapterStamp stamp;  // of its files, before they were read
  AdapterSize size;
  std::vector<Part> parts;
  Buffer factors;  // size.bytes bytes, from Stream::AllocateHost
};

// Returns the size of an adapter: checks its files, but reads only headers, no values. The errors
// are those of PackAdapter.
absl::StatusOr<AdapterSize> MeasureAdapter(const AdapterSource& source, const ModelConfig& config,
                                           const AdapterLayout& layout, bool follow_symlinks);

// Reads an adapter and converts its factors to the layout's dtype. Thread-safe. Errors, with the
// adapter's name and path: those of ReadAdapter; INVALID_ARGUMENT: a factor is beyond the range of
// the dtype; UNIMPLEMENTED: the adapter changes a head; RESOURCE_EXHAUSTED: not enough memory.
absl::StatusOr<AdapterHandle> PackAdapter(const AdapterSource& source, const ModelConfig& config,
                                          const std::shared_ptr<const AdapterLayout>& layout,
                                          bool follow_symlinks, const Stream& stream);

}  // namespace quintet
