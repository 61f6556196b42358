#include "tests/engine/illegal_access_gpu.h"

#include <cuda_runtime.h>

namespace quintet {
namespace {

__global__ void IllegalAccess(int* nowhere) { *nowhere = 1; }

}  // namespace

void QueueIllegalAccess(void* queue) {
  IllegalAccess<<<1, 1, 0, static_cast<cudaStream_t>(queue)>>>(reinterpret_cast<int*>(16));
}

}  // namespace quintet
