// Random draws from a counter-based generator: a draw depends on the request's seed, the sequence
// and the position, and on nothing else. Both backends compile this file.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

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

// A double in (0, 1), never an end: the middle of one of 2^52 equal cells.
QT_HOST_DEVICE inline double OpenUnit(uint32_t high, uint32_t low) {
  const uint64_t bits = (uint64_t{high} << 32 | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

// What a draw depends on: equal places give equal draws.
struct DrawPlace {
  uint64_t seed = 0;
  uint32_t sequence = 0;  // index among the request's samples
  uint32_t position = 0;  // tokens that the sequence has so far
};

// The uniform draw that chooses one token.
QT_HOST_DEVICE inline double UnitAt(const DrawPlace& place) {
  const RandomBits bits = Philox(place.seed, {{place.position, place.sequence, 0u, 0u}});
  return OpenUnit(bits.word[0], bits.word[1]);
}

// The sort key of the Gumbel trick: taking elements by descending key draws without replacement in
// proportion to exp(value). `flat` is the element's index; a value of -inf gives -inf.
QT_HOST_DEVICE inline double DrawKey(float value, const DrawPlace& place, uint32_t flat) {
  // Two elements share a block of four words; the last counter word keeps these draws apart from
  // UnitAt's.
  const RandomBits bits = Philox(place.seed, {{place.position, place.sequence, flat / 2, 1u}});
  const bool second = flat % 2 != 0;
  const double unit =
      OpenUnit(second ? bits.word[2] : bits.word[0], second ? bits.word[3] : bits.word[1]);
  return static_cast<double>(value) - std::log(-std::log(unit));
}

}  // namespace quintet
