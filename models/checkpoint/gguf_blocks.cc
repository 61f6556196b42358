#include "models/checkpoint/gguf_blocks.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/tensor.h"

namespace quintet {
namespace {

// The functions below do floating-point operations in the same order as the gguf package, which
// rounds to f32 after each operation. The build has -ffp-contract=off, so the compiler does not
// fuse operations.

constexpr int kBlock = 32, kSuperBlock = 256;

float Half(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return F16ToF32(bits);
}

uint32_t Word(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// Returns the i-th of 32 nibbles in 16 bytes. Nibbles 0 to 15 are the low halves of the bytes,
// nibbles 16 to 31 the high halves.
int Nibble(const uint8_t* bytes, int i) { return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4; }

// Block layout: d (f16), 16 bytes of nibbles q. Value = d (q - 8).
void DecodeQ4_0(const uint8_t* block, float* values) {
  const float d = Half(block);
  for (int i = 0; i < kBlock; ++i) values[i] = d * static_cast<float>(Nibble(block + 2, i) - 8);
}

// Block layout: d (f16), m (f16), 16 bytes of nibbles q. Value = d q + m.
void DecodeQ4_1(const uint8_t* block, float* values) {
  const float d = Half(block), m = Half(block + 2);
  for (int i = 0; i < kBlock; ++i) values[i] = d * static_cast<float>(Nibble(block + 4, i)) + m;
}

// Block layout: d (f16), fifth bits of all q, 16 bytes of their low nibbles. Value = d (q - 16).
void DecodeQ5_0(const uint8_t* block, float* values) {
  const float d = Half(block);
  const uint32_t high = Word(block + 2);
  for (int i = 0; i < kBlock; ++i) {
    const int q = Nibble(block + 6, i) | static_cast<int>(high >> i & 1) << 4;
    values[i] = d * static_cast<float>(q - 16);
  }
}

// Block layout: d (f16), m (f16), fifth bits of all q, 16 bytes of low nibbles. Value = d q + m.
void DecodeQ5_1(const uint8_t* block, float* values) {
  const float d = Half(block), m = Half(block + 2);
  const uint32_t high = Word(block + 4);
  for (int i = 0; i < kBlock; ++i) {
    const int q = Nibble(block + 8, i) | static_cast<int>(high >> i & 1) << 4;
    values[i] = d * static_cast<float>(q) + m;
  }
}

// Block layout: d (f16), 32 q (i8). Value = q d.
void DecodeQ8_0(const uint8_t* block, float* values) {
  const float d = Half(block);
  for (int i = 0; i < kBlock; ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  }
}

// Returns the i-th of 256 two-bit values in 64 bytes. Each half of 32 bytes holds 128 values: their
// lowest two bits hold values 0 to 31, the next two bits values 32 to 63, and so on.
int TwoBits(const uint8_t* bytes, int i) {
  return bytes[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}
// Returns the i-th of 256 nibbles. Every 32 bytes hold 64 nibbles: the low halves of the bytes are
// the first 32, the high halves the other 32.
int PairedNibble(const uint8_t* bytes, int i) {
  return bytes[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}
// Returns the i-th of 256 bits in 32 bytes: bit n (0: lowest) of byte b has i = 32 n + b.
int OneBit(const uint8_t* bytes, int i) { return bytes[i % 32] >> i / 32 & 1; }

// Block layout: 16 bytes, each a scale and a min of 4 bits; 64 bytes of two-bit q; d, dmin (f16).
// Value = (d scale) q - (dmin min); 16 values share a scale and a min.
void DecodeQ2_K(const uint8_t* block, float* values) {
  const uint8_t *scales = block, *bits = block + 16;
  const float d = Half(block + 80), dmin = Half(block + 82);
  for (int i = 0; i < kSuperBlock; ++i) {
    const float scale = d * static_cast<float>(scales[i / 16] & 15);
    const float least = dmin * static_cast<float>(scales[i / 16] >> 4);
    values[i] = scale * static_cast<float>(TwoBits(bits, i)) - least;
  }
}

// Block layout: 32 bytes of high bits; 64 bytes of low bits (two per value); 16 scales in 12 bytes;
// d (f16). Value = (d (scale - 32)) q, where q is the two low bits, minus 4 if the high bit is 0.
// 16 values share a scale.
void DecodeQ3_K(const uint8_t* block, float* values) {
  const uint8_t *high = block, *bits = block + 32, *scales = block + 96;
  const float d = Half(block + 108);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int n = i / 16;  // low four bits: nibbles of 8 bytes; high two bits: of 4 bytes
    const int low = scales[n % 8] >> n / 8 * 4 & 15;
    const int scale = low | (scales[8 + n % 4] >> n / 4 * 2 & 3) << 4;
    const int q = TwoBits(bits, i) - (OneBit(high, i) == 0 ? 4 : 0);
    values[i] = d * static_cast<float>(scale - 32) * static_cast<float>(q);
  }
}

// Returns the n-th of eight scales and of eight minima, 6-bit numbers in 12 bytes. Scales 0 to 3
// are the low six bits of bytes 0 to 3; minima 0 to 3 are the low six bits of bytes 4 to 7. Scales
// (minima) 4 to 7 have their low four bits in the low (high) nibbles of bytes 8 to 11 and their
// high two bits in the high two bits of bytes 0 to 3 (4 to 7).
void SixBits(const uint8_t* bytes, int n, int* scale, int* least) {
  if (n < 4) {
    *scale = bytes[n] & 63;
    *least = bytes[4 + n] & 63;
  } else {
    *scale = (bytes[4 + n] & 15) | (bytes[n - 4] >> 2 & 48);
    *least = bytes[4 + n] >> 4 | (bytes[n] >> 2 & 48);
  }
}

// Block layout: d, dmin (f16); 12 bytes of scales and mins, a pair per 32 values; `high`, the fifth
// bits of q (32 bytes, or null); 128 bytes of nibbles. Value = (d scale) q - (dmin min).
void DecodeNibbles(const uint8_t* block, const uint8_t* high, const uint8_t* low, float* values) {
  const float d = Half(block), dmin = Half(block + 2);
  for (int n = 0; n < 8; ++n) {
    int scale, least;
    SixBits(block + 4, n, &scale, &least);
    const float step = d * static_cast<float>(scale), offset = dmin * static_cast<float>(least);
    for (int i = 32 * n; i < 32 * n + 32; ++i) {
      const int q = PairedNibble(low, i) | (high == nullptr ? 0 : OneBit(high, i) << 4);
      values[i] = step * static_cast<float>(q) - offset;
    }
  }
}

void DecodeQ4_K(const uint8_t* block, float* values) {
  DecodeNibbles(block, nullptr, block + 16, values);
}

void DecodeQ5_K(const uint8_t* block, float* values) {
  DecodeNibbles(block, block + 16, block + 48, values);
}

// Block layout: 128 bytes with the low four bits of each q; 64 bytes with the high two bits of each
// q; 16 scales (i8); d (f16). Value = (d scale) (q - 32); 16 values share a scale.
void DecodeQ6_K(const uint8_t* block, float* values) {
  const uint8_t *low = block, *high = block + 128, *scales = block + 192;
  const float d = Half(block + 208);
  for (int i = 0; i < kSuperBlock; ++i) {
    // Each 64 bytes hold 128 values: 0 to 63 in the low nibbles, 64 to 127 in the high ones.
    const int nibble = low[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
    const float scale = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    values[i] = scale * static_cast<float>((nibble | TwoBits(high, i) << 4) - 32);
  }
}

constexpr StoredType kFloat = StoredType::kF32;
constexpr GgufEncoding kEncodings[] = {
    {0, "F32", kFloat, 1, 4, nullptr},
    {1, "F16", StoredType::kF16, 1, 2, nullptr},
    {30, "BF16", StoredType::kBF16, 1, 2, nullptr},
    {2, "Q4_0", kFloat, kBlock, 18, DecodeQ4_0},
    {3, "Q4_1", kFloat, kBlock, 20, DecodeQ4_1},
    {6, "Q5_0", kFloat, kBlock, 22, DecodeQ5_0},
    {7, "Q5_1", kFloat, kBlock, 24, DecodeQ5_1},
    {8, "Q8_0", kFloat, kBlock, 34, DecodeQ8_0},
    {10, "Q2_K", kFloat, kSuperBlock, 84, DecodeQ2_K},
    {11, "Q3_K", kFloat, kSuperBlock, 110, DecodeQ3_K},
    {12, "Q4_K", kFloat, kSuperBlock, 144, DecodeQ4_K},
    {13, "Q5_K", kFloat, kSuperBlock, 176, DecodeQ5_K},
    {14, "Q6_K", kFloat, kSuperBlock, 210, DecodeQ6_K},
};

struct TypeName {
  uint32_t type;
  const char* name;
};
constexpr TypeName kUnsupported[] = {
    {9, "Q8_1"},    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},
    {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},  {34, "TQ1_0"},   {35, "TQ2_0"},
    {39, "MXFP4"},  {40, "NVFP4"}, {41, "Q1_0"},
};

}  // namespace

const GgufEncoding* FindGgufEncoding(uint32_t type) {
  for (const GgufEncoding& encoding : kEncodings) {
    if (encoding.type == type) return &encoding;
  }
  return nullptr;
}

std::string SupportedGgufEncodings() {
  return absl::StrJoin(kEncodings, ", ", [](std::string* out, const GgufEncoding& encoding) {
    absl::StrAppend(out, encoding.name);
  });
}

std::string GgufTypeName(uint32_t type) {
  if (const GgufEncoding* encoding = FindGgufEncoding(type)) return encoding->name;
  for (const TypeName& known : kUnsupported) {
    if (known.type == type) return known.name;
  }
  return absl::StrCat("type ", type);
}

}  // namespace quintet
