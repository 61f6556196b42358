// Random draws from a counter-based generator. A draw depends only on the seed of the request, the
// index of the sequence within the request, and the length of the sequence (DrawId), so results are
// reproducible under any batching. The CPU backend and the CUDA backend both compile this file.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace quintet {

struct RandomBits {
  uint32_t word[4];
  bool operator==(const RandomBits&) const = default;
};

// Philox4x32-10 (Salmon et al. 2011): 128 random bits as a function of a 64-bit key and a 128-bit
// counter.
QT_HOST_DEVICE inline RandomBits Philox(uint64_t key, const RandomBits& counter) {
  RandomBits c = counter;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57u} * c.word[2];
    c = {{static_cast<uint32_t>(b >> 32) ^ c.word[1] ^ k0, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ c.word[3] ^ k1, static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Returns a double strictly inside (0, 1). The top 52 bits of `high` and `low` together select one
// of 2^52 equal intervals; the result is its midpoint.
QT_HOST_DEVICE inline double OpenUnit(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

// The inputs of a random draw. Equal values give equal draws.
struct DrawId {
  uint64_t seed = 0;      // the seed of the request
  uint32_t sequence = 0;  // index among the sampled sequences of the request
  uint32_t position = 0;  // current length of the sequence, in tokens
};

// Returns the random number of this draw, uniform in (0, 1). Sampling uses it to select one token.
QT_HOST_DEVICE inline double UniformAt(const DrawId& draw_id) {
  const RandomBits bits = Philox(draw_id.seed, {{draw_id.position, draw_id.sequence, 0u, 0u}});
  return OpenUnit(bits.word[0], bits.word[1]);
}

// The sort key of the Gumbel top-k trick: value + Gumbel noise. The k elements with the largest
// keys are a random sample without replacement, with weights exp(value). `flat` is the index of the
// element and selects its noise. A value of -inf gives -inf.
QT_HOST_DEVICE inline double GumbelKey(float value, const DrawId& draw_id, uint32_t flat) {
  // Elements 2i and 2i + 1 share one result of Philox: it has four words, and each element needs
  // two. The last word of the Philox counter is 1 here and 0 in UniformAt, so the two functions
  // never use the same random bits.
  const RandomBits bits =
      Philox(draw_id.seed, {{draw_id.position, draw_id.sequence, flat / 2, 1u}});
  const bool second = flat % 2 != 0;
  const double unit =
      OpenUnit(second ? bits.word[2] : bits.word[0], second ? bits.word[3] : bits.word[1]);
  return static_cast<double>(value) - std::log(-std::log(unit));
}

}  // namespace quintet
