// Conversions from and to e4m3 (DType::kF8). To e4m3: round to nearest even; larger magnitudes than
// 448, infinities included, become 448; NaN stays NaN. GPUs of sm_89 and newer have instructions
// for them.
#pragma once

#include <cuda_fp8.h>

#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {

// Returns two e4m3 values, with `low` in the low byte.
__device__ __forceinline__ uint32_t E4m3Pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2({low, high}, __NV_SATFINITE, __NV_E4M3);
}
__device__ __forceinline__ uint32_t E4m3Four(const float* v) {
  return E4m3Pair(v[0], v[1]) | E4m3Pair(v[2], v[3]) << 16;
}

// Converts kCount values of T to e4m3 and stores them; kCount is 1, 4 or 8. If `to` is not aligned
// to kCount bytes, they are stored one by one.
template <typename T, int kCount>
__device__ __forceinline__ void StoreE4m3(const T* from, uint8_t* to) {
  if constexpr (kCount > 1) {
    if (reinterpret_cast<uintptr_t>(to) % kCount == 0) {
      uint32_t words[kCount / 4];
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        float four[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = ToF32(from[4 * i + j]);
        words[i] = E4m3Four(four);
      }
      if constexpr (kCount == 4) *reinterpret_cast<uint32_t*>(to) = words[0];
      if constexpr (kCount == 8) *reinterpret_cast<uint2*>(to) = {words[0], words[1]};
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = static_cast<uint8_t>(E4m3Pair(ToF32(from[i]), 0.0f));
}

// Rounds kCount values to T, then converts them as StoreE4m3 does. The bytes are those that
// StoreKv would make of values of T.
template <typename T, int kCount>
__device__ __forceinline__ void RoundAndStoreE4m3(const float* from, uint8_t* to) {
  T values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) values[i] = FromF32<T>(from[i]);
  StoreE4m3<T, kCount>(values, to);
}

// Converts the two e4m3 values in the low 16 bits of `pair` to f16, exactly.
__device__ __forceinline__ uint32_t HalfPairOf(uint32_t pair) {
  const __half2_raw half =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  return static_cast<uint32_t>(half.x) | static_cast<uint32_t>(half.y) << 16;
}

// Converts eight consecutive e4m3 values to T, which is bf16 or f16, exactly.
template <typename T>
__device__ __forceinline__ uint4 EightFromE4m3(const uint2& bytes) {
  uint32_t pairs[4] = {HalfPairOf(bytes.x), HalfPairOf(bytes.x >> 16), HalfPairOf(bytes.y),
                       HalfPairOf(bytes.y >> 16)};
  if constexpr (!std::is_same_v<T, __half>) {
#pragma unroll
    for (uint32_t& pair : pairs) {
      const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
      const __nv_bfloat162 rounded = __floats2bfloat162_rn(v.x, v.y);
      pair = *reinterpret_cast<const uint32_t*>(&rounded);
    }
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

}  // namespace quintet::cuda
