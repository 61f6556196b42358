// Int8 and fp8 weights on a GPU: their order in memory, and their conversion to bf16 in registers.
//
// If k is a multiple of kByteGroup, the values of a row of W are permuted within each group of
// kByteGroup values of k, so that a lane of a warp finds its A fragments of four mma.m16n8k16 (or
// wgmma with 16 values of k) in 16 consecutive bytes. Byte 16 t + 4 j + b of a group, for lane t of
// four and product j, is the value of k = 16 j + 2 t + (b odd ? 8 : 0) + b / 2. Hence the even
// bytes of word j are one register of the fragment, and the odd bytes are the next but one.
// LinearWeight::Pack writes this order (linear/pack.cc). Other k: the values are in order.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace quintet::cuda {

constexpr int kByteGroup = 64;

// Which byte of each 16-bit half of a word holds a value.
enum class ByteHalf { kHigh, kLow };

// Converts the e4m3 values in the high or the low bytes of the halves of a word to bf16, exactly:
// moves sign, exponent and mantissa to their places; the multiplication by 2^120 corrects the
// exponent bias.
template <ByteHalf kHalf>
__device__ __forceinline__ uint32_t PairOfE4m3(uint32_t word) {
  uint32_t bits;
  if constexpr (kHalf == ByteHalf::kHigh) {
    bits = (word & 0x80008000u) | ((word >> 4) & 0x07f007f0u);
  } else {
    bits = ((word << 8) & 0x80008000u) | ((word << 4) & 0x07f007f0u);
  }
  const uint32_t factor = 0x7b807b80u;  // 2^120
  const __nv_bfloat162 pair = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits),
                                      *reinterpret_cast<const __nv_bfloat162*>(&factor));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The same for int8: the low seven bits become the mantissa of the bf16 value 128 + low, from which
// 128 is subtracted, or 256 if the sign bit is set.
template <ByteHalf kHalf>
__device__ __forceinline__ uint32_t PairOfInt8(uint32_t word) {
  const uint32_t low = kHalf == ByteHalf::kHigh ? word >> 8 : word;
  const uint32_t bits = (low & 0x007f007fu) | 0x43004300u;
  const uint32_t less = (low & 0x00800080u) | 0x43004300u;
  const __nv_bfloat162 pair = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&bits),
                                      *reinterpret_cast<const __nv_bfloat162*>(&less));
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The pair of bf16 values of the even or the odd bytes of a word.
template <bool kF8>
__device__ __forceinline__ uint32_t EvenPair(uint32_t word) {
  return kF8 ? PairOfE4m3<ByteHalf::kLow>(word) : PairOfInt8<ByteHalf::kLow>(word);
}
template <bool kF8>
__device__ __forceinline__ uint32_t OddPair(uint32_t word) {
  return kF8 ? PairOfE4m3<ByteHalf::kHigh>(word) : PairOfInt8<ByteHalf::kHigh>(word);
}

}  // namespace quintet::cuda
