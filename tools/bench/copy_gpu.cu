#include "tools/bench/copy_gpu.h"

#include <cuda_runtime.h>

namespace quintet {
namespace {

constexpr int kThreads = 512, kEach = 8;  // 16 bytes at a time: a block copies 64 KiB

// What: to = from. Shapes: vectors of 16 bytes, kThreads * kEach a block.
// Math: none. Map: a thread keeps kEach loads under way.
// Bound: 2 bytes of traffic for each byte copied: it is the yardstick.
// Spec: none, nothing is computed from it.
__global__ void __launch_bounds__(kThreads) CopyKernel(uint4* to, const uint4* from) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
  uint4 values[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) values[i] = __ldcs(from + first + i * kThreads);
#pragma unroll
  for (int i = 0; i < kEach; ++i) __stcs(to + first + i * kThreads, values[i]);
}

}  // namespace

void QueueCopy(void* to, const void* from, int64_t bytes, void* queue) {
  CopyKernel<<<static_cast<unsigned>(bytes / (kThreads * kEach * 16)), kThreads, 0,
               static_cast<cudaStream_t>(queue)>>>(static_cast<uint4*>(to),
                                                   static_cast<const uint4*>(from));
}

}  // namespace quintet
