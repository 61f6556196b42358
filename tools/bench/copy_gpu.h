// The copy that bench_kernels_gpu measures memory by: a kernel, since cudaMemcpy in a recorded graph may go through a copy engine,
// which is slower.
#pragma once

#include <cstdint>

namespace quintet {

// Queues a copy of `bytes`, a multiple of 64 Ki, on a CUDA stream.
void QueueCopy(void* to, const void* from, int64_t bytes, void* queue);

}  // namespace quintet
