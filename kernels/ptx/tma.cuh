// mbarriers in shared memory, and TMA loads of boxes of a tensor to shared memory; sm_90 and newer.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/ptx/mma.cuh"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {

// Initialises an mbarrier. Each of its phases ends after `arrivals` arrivals.
__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
               :
               : "r"(barrier), "r"(arrivals)
               : "memory");
}
// fence_barrier_init: makes initialised mbarriers visible to TMA loads and to the cluster. A thread
// calls it after its last BarrierInit.
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives at an mbarrier of this CTA.
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// Arrives at an mbarrier of this CTA and adds `bytes` to the number of bytes that the current phase
// expects: the phase ends only after all arrivals and after TMA loads have written that many bytes.
__device__ __forceinline__ void BarrierArriveExpectTx(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}
// Lets the hardware arrive at the mbarrier once all copies (CpAsync16) that this thread has started
// are complete. Does not wait for them.
__device__ __forceinline__ void BarrierArriveAfterCpAsync(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}
// Waits until the phase with this parity has ended. A newly initialised mbarrier passes a wait for
// parity 1 at once.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
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

// fence_view_async_shared: makes ordinary stores and copies to shared memory visible to later wgmma
// and TMA operations.
__device__ __forceinline__ void FenceViewAsyncShared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Prefetches a tensor map.
__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(&map) : "memory");
}
// TMA load: copies the box of `map` that begins at (channel, head, row) to `shared`. Its bytes
// count towards the mbarrier `barrier`.
__device__ __forceinline__ void TmaLoad(uint32_t shared, const CUtensorMap& map, int channel,
                                        int head, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(shared), "l"(&map), "r"(channel), "r"(head), "r"(row), "r"(barrier)
      : "memory");
}

// TMA multicast load: copies a box to the same shared memory offset in both CTAs of the cluster.
// The bytes count towards the mbarrier at the same offset in each CTA.
__device__ __forceinline__ void TmaLoadMulticast(uint32_t shared, const CUtensorMap& map,
                                                 int channel, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;"
      :
      : "r"(shared), "l"(&map), "r"(channel), "r"(0), "r"(row), "r"(barrier),
        "h"(static_cast<uint16_t>(3))
      : "memory");
}

// Pipeline state: the current stage of a ring of kStages stages, and the parity of its mbarriers.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;  // parity of the phase that fills the stage

  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  // Advances `count` times.
  __device__ __forceinline__ void Skip(int count) {
    const int to = stage + count;
    stage = to % kStages;
    parity ^= static_cast<uint32_t>(to / kStages) & 1;
  }
};

// A tensor [rows, heads, head_dim] of 16-bit values; strides in elements.
struct TmaTensor {
  const void* data;
  int64_t rows, heads, head_dim, row_stride, head_stride;
};

// Encodes a tensor map for boxes of `box_rows` rows (up to 256) of 64 channels of one head. In
// shared memory a row has 128 bytes and is swizzled: its 16-byte chunk c is stored as chunk c ^
// (row % 8). Elements outside of the tensor are loaded as zeros. `data` must be 16-byte aligned,
// and the strides must be multiples of 16 bytes. If encoding fails, records the error with the
// stream (CudaStream::Fail) and returns false.
bool MakeTensorMap(const TmaTensor& rows, int box_rows, CudaStream& stream, CUtensorMap* map);

}  // namespace quintet::cuda
