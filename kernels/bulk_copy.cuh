// Barriers in shared memory and bulk copies of boxes of a tensor to it (TMA), from sm_90 on.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda.cuh"
#include "kernels/mma.cuh"

namespace quintet::cuda {

__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(barrier), "r"(arrivals)
               : "memory");
}
// After the last InitBarrier of a thread: bulk copies see the barriers, too.
__device__ __forceinline__ void ShowBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// Arrives; the phase ends when `bytes` of bulk copies are there, too.
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}
// Arrives when all copies (CopyAsync16) that this thread has begun are there.
__device__ __forceinline__ void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}
// Waits for the end of the phase with this parity; a barrier that was never used has ended phase 1.
__device__ __forceinline__ void Wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}

// Shared memory written by ordinary stores and copies before this is what wgmma and bulk copies
// meet after it.
__device__ __forceinline__ void ShowToAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Fetches a map that copies will need.
__device__ __forceinline__ void AskForMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}
// The box of `map` that begins at (channel, head, row), to `shared`; `barrier` learns of its bytes.
__device__ __forceinline__ void CopyBox(uint32_t shared, const CUtensorMap& map, int channel,
                                        int head, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(shared), "l"(&map), "r"(channel), "r"(head), "r"(row), "r"(barrier)
      : "memory");
}

// Counts uses of a ring of kStages places.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;  // of the phase in which the place is filled

  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Rows of 16-bit values: [rows, heads, head_dim], strides in elements.
struct BoxedRows {
  const void* data;
  int64_t rows, heads, head_dim, row_stride, head_stride;
};

// Boxes of `box_rows` rows (up to 256) of 64 channels of one head. In shared memory a row has 128
// bytes whose 16-byte pieces are permuted by piece ^ (row % 8); what lies outside of the tensor is
// zeros. `data` and the strides are multiples of 16 bytes.
bool EncodeBoxes(const BoxedRows& rows, int box_rows, Device& device, CUtensorMap* map);

}  // namespace quintet::cuda
