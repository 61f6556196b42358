// The tokens that each sequence of a step has so far, as ops read them. Ids are stored like keys,
// one for each slot of the key/value cache: sequences share a common prefix, and beams move by
// their slot tables alone.
#pragma once

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace quintet {

struct TokenHistory {
  Tensor tokens;                   // [slots] i32 in the stream's memory
  const int32_t* slots = nullptr;  // [n, slots_stride] mirrored: slot of each position
  int64_t slots_stride = 0;
  absl::Span<const int32_t> lens;  // [n] mirrored: tokens of each sequence
};

}  // namespace quintet
