// The one place where an op learns on which backend it runs. Each op's public function checks its
// shapes, then comes here.
#pragma once

#include "kernels/check.h"
#include "kernels/stream.h"

namespace quintet {

#ifdef QUINTET_CUDA
inline constexpr bool kCudaBuilt = true;
#else
inline constexpr bool kCudaBuilt = false;
#endif

// The function of the stream's backend, to be called at once: Dispatch<cpu::RmsNorm,
// cuda::RmsNorm>(stream)(args, stream). A build without CUDA never mentions the second.
template <auto kOnCpu, auto kOnCuda>
auto Dispatch(const Stream& stream) {
  if constexpr (kCudaBuilt) {
    if (stream.backend() == Backend::kCuda) return kOnCuda;
  }
  QT_CHECK(stream.backend() == Backend::kCpu);
  return kOnCpu;
}

// Ops that run on the CPU alone.
template <auto kOnCpu>
auto Dispatch(const Stream& stream) {
  QT_CHECK(stream.backend() == Backend::kCpu);
  return kOnCpu;
}

// Values that flow through a model: f32 on the CPU, f32, bf16 or f16 on a GPU.
inline bool IsActivation(DType dtype, const Stream& stream) {
  return dtype == DType::kF32 ||
         (stream.backend() == Backend::kCuda && (dtype == DType::kBF16 || dtype == DType::kF16));
}

}  // namespace quintet
