// Selects the backend (CPU or CUDA) of an op. The public function of each op checks its arguments
// and then calls Dispatch.
#pragma once

#include "kernels/base/check.h"
#include "kernels/base/tensor.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream.h"
#include "kernels/runtime/thread_pool.h"

namespace quintet {

#ifdef QUINTET_CUDA
inline constexpr bool kCudaBuilt = true;
#else
inline constexpr bool kCudaBuilt = false;
#endif

// Calls an op with `args` on the backend of `stream`: kOnCpu on its thread pool, kOnCuda on its
// CUDA stream. Usage:
//
//     Dispatch<cpu::RmsNorm, cuda::RmsNorm>(stream, args);
//
// A build without CUDA does not reference kOnCuda, so the CUDA functions need not be linked.
template <auto kOnCpu, auto kOnCuda, typename... Args>
auto Dispatch(const Stream& stream, const Args&... args) {
  if constexpr (kCudaBuilt) {
    if (stream.backend() == Backend::kCuda) return kOnCuda(args..., stream.device());
  }
  QT_CHECK(stream.backend() == Backend::kCpu);
  return kOnCpu(args..., stream.pool());
}

// True if activations may have this dtype: f32 on the CPU; f32, bf16 or f16 on a GPU.
inline bool IsActivation(DType dtype, const Stream& stream) {
  return dtype == DType::kF32 ||
         (stream.backend() == Backend::kCuda && (dtype == DType::kBF16 || dtype == DType::kF16));
}

}  // namespace quintet
