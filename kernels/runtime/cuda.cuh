// Shared by all .cu files: the CUDA stream, error recording, kernel launch, dtype dispatch, 16-byte
// vector loads and stores as f32, reductions. Nothing else belongs here.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/base/tensor.h"
#include "kernels/runtime/cuda_stream.h"

namespace quintet::cuda {

inline cudaStream_t Queue(const CudaStream& stream) {
  return static_cast<cudaStream_t>(stream.queue());
}

// Returns whether a CUDA call succeeded; if not, stores its error in `stream` (CudaStream::Fail).
inline bool Recorded(cudaError_t error, const char* what, const char* file, int line,
                     CudaStream& stream) {
  if (error == cudaSuccess) return true;
  stream.Fail("%s at %s:%d: %s", what, file, line, cudaGetErrorString(error));
  return false;
}

// Evaluates `call`, a call of the CUDA runtime, and returns whether it succeeded. If not, records
// its error in `stream` (CudaStream::Fail); Device::Synchronize returns it later.
#define QT_CUDA(stream, call) ::quintet::cuda::Recorded((call), #call, __FILE__, __LINE__, (stream))

// Launches a kernel in clusters of `cluster` CTAs; a cluster of one CTA means no clusters. On
// Hopper the kernel may start before the previous one has finished (programmatic dependent launch);
// see WaitOnDependentGrids for the rule. cudaFuncSetAttribute(MaxDynamicSharedMemorySize) is called
// at every launch because the attribute is per device.
template <typename... Params, typename... Args>
void LaunchClusters(CudaStream& stream, dim3 grid, dim3 cluster, dim3 block, size_t shared_bytes,
                    void (*kernel)(Params...), Args&&... args) {
  constexpr size_t kAlways = 48 << 10;  // bytes that every launch may use
  if (shared_bytes > kAlways &&
      !QT_CUDA(stream, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shared_bytes)))) {
    return;
  }
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = Queue(stream);
  config.attrs = attributes;
  if (stream.hopper()) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster.x * cluster.y * cluster.z > 1) {
    cudaLaunchAttribute& clusters = attributes[config.numAttrs++];
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim = {cluster.x, cluster.y, cluster.z};
  }
  QT_CUDA(stream, cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...));
}

// Launches a kernel without clusters.
template <typename... Params, typename... Args>
void Launch(CudaStream& stream, dim3 grid, dim3 block, size_t shared_bytes,
            void (*kernel)(Params...), Args&&... args) {
  LaunchClusters(stream, grid, dim3(1), block, shared_bytes, kernel, std::forward<Args>(args)...);
}

// griddepcontrol.launch_dependents: lets the next kernel start once a thread of every CTA has
// called it. Call it only after griddepcontrol.wait; see WaitOnDependentGrids.
__device__ __forceinline__ void LaunchDependentGrids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// griddepcontrol.wait, then launch_dependents: waits until the previous kernel has finished, then
// lets the next kernel start. Every kernel must wait on every code path before it lets the next
// kernel start.
//
// This rule guarantees that when a kernel starts, everything enqueued before it is done and
// visible, except the one kernel just before it. Before WaitOnDependentGrids a kernel may write
// only shared memory, and may read only what the previous kernel does not write: weights with any
// load; what earlier kernels and copies wrote (tables, cached keys) only with loads that bypass the
// L1 cache (__ldcg, CpAsync16). If a kernel let the next kernel start before its own wait, several
// waiting kernels could be resident at once, and their weight loads would delay the loads of the
// kernel that runs: this costs 10 % of a one-row decoder step.
__device__ __forceinline__ void WaitOnDependentGrids() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  LaunchDependentGrids();
}

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls visit(TypeTag<T>()), where T is the C++ type of `dtype`: float, __nv_bfloat16 or __half.
template <typename Visit>
void DispatchDType(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(TypeTag<float>());
    case DType::kBF16:
      return visit(TypeTag<__nv_bfloat16>());
    case DType::kF16:
      return visit(TypeTag<__half>());
    default:
      QT_CHECK(dtype == DType::kF32);
  }
}

__device__ __forceinline__ float ToF32(float x) { return x; }
__device__ __forceinline__ float ToF32(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float ToF32(__half x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T FromF32(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Number of values of T in a 16-byte vector. LoadVector loads a vector and converts it to f32;
// StoreVector converts f32 to T and stores a vector.
template <typename T>
inline constexpr int kVector = 16 / sizeof(T);

template <typename T>
__device__ __forceinline__ void LoadVector(const T* from, float (&to)[kVector<T>]) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  const T* values = reinterpret_cast<const T*>(&bits);
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) to[i] = ToF32(values[i]);
}

template <typename T>
__device__ __forceinline__ void StoreVector(const float (&from)[kVector<T>], T* to) {
  uint4 bits;
  T* values = reinterpret_cast<T*>(&bits);
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) values[i] = FromF32<T>(from[i]);
  *reinterpret_cast<uint4*>(to) = bits;
}

// LoadConsecutive and StoreConsecutive move kCount consecutive values between memory, where they
// have type T, and registers, where they are f32. kCount is 1 or a multiple of kVector<T>; in the
// second case the addresses must be 16-byte aligned.
template <typename T, int kCount>
__device__ __forceinline__ void LoadConsecutive(const T* from, float (&to)[kCount]) {
  if constexpr (kCount == 1) {
    to[0] = ToF32(*from);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += kVector<T>) {
      float part[kVector<T>];
      LoadVector(from + i, part);
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) to[i + j] = part[j];
    }
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void StoreConsecutive(const float (&from)[kCount], T* to) {
  if constexpr (kCount == 1) {
    *to = FromF32<T>(from[0]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += kVector<T>) {
      float part[kVector<T>];
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) part[j] = from[i + j];
      StoreVector(part, to + i);
    }
  }
}

// Whether all rows of the tensor begin on 16-byte boundaries and consist of whole 16-byte vectors.
inline bool Vectorizable(const Tensor& t) {
  const int64_t bytes = DTypeBytes(t.dtype);
  return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride[0] * bytes % 16 == 0 &&
         t.dim[t.rank - 1] * bytes % 16 == 0;
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Returns the sum of x over all threads of a CTA to every thread, added in a fixed order. The
// number of threads must be a multiple of 32 and at most 1024. `shared` [32] may be reused after
// the next barrier.
__device__ __forceinline__ float BlockSum(float x, float* shared) {
  x = WarpSum(x);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return x;
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return WarpSum(lane < warps ? shared[lane] : 0.0f);
}

}  // namespace quintet::cuda
