// The tokens that each sequence of a step has so far, as ops read them: the ids lie where the keys
// lie, one for each slot of the cache, so that sequences share what they have in common and beams
// move by their slots alone.
#pragma once

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace quintet {

struct TokenHistory {
  Tensor tokens;                   // [slots] i32 in the stream's memory
  const int32_t* slots = nullptr;  // [n, slots_stride] mirrored: of each sequence's positions
  int64_t slots_stride = 0;
  absl::Span<const int32_t> lens;  // [n] mirrored: tokens of each sequence
};

}  // namespace quintet
