// Persistent GEMM for many rows on Hopper: the kernel and its launch.
#pragma once

#include <algorithm>

#include "kernels/linear/persistent_consumer.cuh"

namespace quintet::cuda {

// Persistent GEMM. kGated: y = activation(x Wg^T) * (x Wu^T), where the rows of W are those of Wg
// and then those of Wu. kScattered: K and V = x W^T scattered to the KV cache. kPlain: y =
// activation(x W^T + bias); if y is f32, y = x W^T + bias + residual. With 8-bit x and W, each
// element of x W^T is the accumulated sum multiplied by the scale of the row of x, the scale of the
// row of W, and alpha.
// Shapes: x [rows, k] In, W [2 columns, k] or [columns, k] In, y [rows, columns] T or as in
// ScatterOutput (In and T: types of S); columns is a multiple of 8. Rows of x, of W and of 16-bit y
// begin on 16-byte boundaries, rows of f32 y and of the residual on 8-byte boundaries.
// Accumulation: wgmma over k in ascending order, bit-identical from run to run. int8: exact, in
// i32. bf16, f16: f32. e4m3: f32, but the tensor cores add with fewer bits: the tests
// allow errors of 2^-11 of the sum of the terms' magnitudes. Gate and up are multiplied before they
// are rounded. GELU (tanh) and SiLU take one exponential per value and one reciprocal for every two
// values.
// Mapping: S::kCtasPerSm CTAs per SM loop over output tiles (PersistentTile,
// PersistentTileScheduler). A producer thread issues TMA loads into the pipeline stages; a stage
// holds 128 bytes of each of 128 rows of x and S::kChannels rows of W. A consumer warpgroup has
// 64 x 256, 128 x 128 or 128 x 64 accumulators. In the epilogue every warp stages 16 rows by 64
// columns of 16 bits in its own shared memory and stores 16 bytes per lane, while the producer
// already loads the next tile.
// Bound: tensor cores; with kFew, reading W. 16384 rows with W of 10240 x 2048 are 0.69 TFLOP,
// 1.0 ms at the rate of cuBLASLt on an H200 (690 TFLOP/s in bf16, limited by power).
// Tests: tests/kernels/linear/persistent_test.cc and byte_gemm_test.cc. Measurements:
// linear/NOTES.md.
template <typename S>
__global__ void __launch_bounds__(S::kThreads, S::kCtasPerSm)
    PersistentKernel(const __grid_constant__ PersistentArgs a,
                     const __grid_constant__ PersistentTensorMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<PersistentSmem<S>*>(shared);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(maps.w);
    PrefetchTensorMap(maps.x);
    for (int stage = 0; stage < S::kStages; ++stage) {
      BarrierInit(SharedAddress(&memory.full[stage]), 1);
      BarrierInit(SharedAddress(&memory.empty[stage]), S::kReleases);
    }
    FenceBarrierInit();
  }
  if constexpr (S::kCluster > 1) {
    ArriveAtCluster();
    WaitForCluster();  // the mbarriers of both CTAs are initialised
  } else {
    __syncthreads();
  }
  WaitOnDependentGrids();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4) {
    WarpgroupRegDealloc<40>();
    if (threadIdx.x == 0) RunPersistentProducer<S>(a, maps, memory);
  } else {
    WarpgroupRegAlloc<S::kConsumerRegisters>();
    PersistentConsumer<S>(a, memory, warp / 4 - 1).Run();
  }
  if constexpr (S::kCluster > 1) {
    ArriveAtCluster();
    WaitForCluster();  // the other CTA may still copy to this one or arrive at its mbarriers
  }
#endif
}

// Launches the kernel. x [rows, k] and W have the type S::In; rows of x begin on 16-byte
// boundaries.
template <typename S>
void LaunchPersistent(const PersistentArgs& a, const Tensor& x, const WeightView& w,
                      CudaStream& stream) {
  // 8-bit values are loaded in pairs, as 16-bit values.
  constexpr int64_t kEach = 2 / sizeof(typename S::In);
  const int64_t k = w.k() / kEach;
  PersistentTensorMaps maps{};
  if (!MakeTensorMap({w.panels(), w.n(), 1, k, k, 0}, S::kWBoxRows, stream, &maps.w) ||
      !MakeTensorMap({x.data, a.rows, 1, k, x.stride[0] / kEach, 0}, S::kXBoxRows, stream,
                     &maps.x)) {
    return;
  }
  const int clusters = std::min(PersistentTileScheduler<S>(a).count(),
                                stream.num_sms() * S::kCtasPerSm / S::kCluster);
  LaunchClusters(stream, dim3(static_cast<unsigned>(clusters * S::kCluster)), dim3(S::kCluster),
                 dim3(S::kThreads), sizeof(PersistentSmem<S>), PersistentKernel<S>, a, maps);
}

}  // namespace quintet::cuda
