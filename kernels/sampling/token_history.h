// The token ids of each sequence in a step, for logits processors. Like keys and values, the id of
// a token is stored at the token's KV cache slot. Sequences with a common prefix therefore share
// the prefix's ids, and reordering beams only permutes their slot tables.
#pragma once

#include <span>

#include "kernels/base/tensor.h"

namespace quintet {

struct TokenHistory {
  Tensor tokens;                   // [slots] i32 on the stream's device: token id by cache slot
  const int32_t* slots = nullptr;  // [n, slots_stride], pinned + device copy: slot by position
  int64_t slots_stride = 0;
  std::span<const int32_t> lens;  // [n], pinned + device copy: length of each sequence
};

}  // namespace quintet
