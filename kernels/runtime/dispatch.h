// Selects the backend (CPU or CUDA) of an op. The public function of each op checks its arguments
// and then calls Dispatch.
#pragma once

#include "kernels/base/check.h"
#include "kernels/runtime/stream.h"

namespace quintet {

#ifdef QUINTET_CUDA
inline constexpr bool kCudaBuilt = true;
#else
inline constexpr bool kCudaBuilt = false;
#endif

// Returns kOnCpu or kOnCuda, by the backend of `stream`. Usage:
//
//     Dispatch<cpu::RmsNorm, cuda::RmsNorm>(stream)(args, stream);
//
// A build without CUDA does not reference kOnCuda, so the CUDA functions need not be linked.
template <auto kOnCpu, auto kOnCuda>
auto Dispatch(const Stream& stream) {
  if constexpr (kCudaBuilt) {
    if (stream.backend() == Backend::kCuda) return kOnCuda;
  }
  QT_CHECK(stream.backend() == Backend::kCpu);
  return kOnCpu;
}

// Dispatch for an op that exists only on the CPU: returns kOnCpu. The backend of `stream` must be
// the CPU.
template <auto kOnCpu>
auto Dispatch(const Stream& stream) {
  QT_CHECK(stream.backend() == Backend::kCpu);
  return kOnCpu;
}

// True if activations may have this dtype: f32 on the CPU; f32, bf16 or f16 on a GPU.
inline bool IsActivation(DType dtype, const Stream& stream) {
  return dtype == DType::kF32 ||
         (stream.backend() == Backend::kCuda && (dtype == DType::kBF16 || dtype == DType::kF16));
}

}  // namespace quintet
