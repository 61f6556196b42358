// FIRE's bias on the accumulators of the Hopper attention kernel.
#pragma once

#include <climits>
#include <cmath>

#include "kernels/attention_call.cuh"
#include "kernels/attention_softmax.cuh"

namespace quintet::cuda {

// A head's network in units of scores before they are scaled, from the largest f to the smallest:
// lines[i] is what holds between knots i - 1 and i.
struct FireTable {
  float2 lines[kHopperKnots + 1];  // slope, offset
  float2 knots[kHopperKnots];      // f, and the slope before it less the slope after it
};

// Logarithms of the distances between a block's queries and a tile's keys, from `kRows` before that
// of the first ones on, twice as PairsOfStrip wants them. The copies differ in banks.
template <int kRows, int kKeys>
struct FireStrip {
  static constexpr int kCount = kRows + kKeys;
  static_assert(kCount % 32 == 0);
  float values[2][kCount + 16];
};

// Of a warp's 16 queries: keys from which on the first one, and all, are past each knot. A lane
// writes and reads its own.
using FirePasses = int2[kHopperKnots];

// A warp writes the strip of distances (key - query) from `begin` on, by HeadBias::FireDistance
// with the fast logarithm; c is not negative.
template <int kRows, int kKeys>
__device__ __forceinline__ void WriteFireStrip(float c, int begin, FireStrip<kRows, kKeys>& strip) {
  constexpr float kLn2 = 0.6931471805599453f;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float delta = static_cast<float>(begin + lane);
#pragma unroll 4
  for (int i = lane; i < strip.kCount; i += 32) {
    float f;  // lg2.approx's argument is at least 1: no care for the smallest numbers
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(f) : "f"(fmaf(c, fabsf(delta), 1.0f)));
    f *= delta < 0.0f ? kLn2 : -kLn2;
    strip.values[0][i] = f;
    if (i > 0) strip.values[1][i - 1] = f;
    delta += 32.0f;
  }
}

// A warp writes the table of a head; `unit`: 1 in units of scores.
__device__ inline void WriteFireTable(const HeadBias& bias, float unit, FireTable& table) {
  const int lane = static_cast<int>(threadIdx.x) % 32, knots = bias.FireSegments() - 1;
  for (int i = lane; i <= knots; i += 32) {
    const float2 line = bias.FireLine(knots - i);
    table.lines[i] = {line.x * unit, line.y * unit};
    if (i == knots) break;
    const float bend = line.x - bias.FireLine(knots - i - 1).x;
    table.knots[i] = {bias.FireFloor(knots - i), bend * unit};
  }
}

// Of a warp's 16 queries and its lanes' two (fragment C of mma.cuh). f falls from key to key: a
// query's keys pass the network's knots from the last to the first, and each query somewhat later
// than the one before it. Between knots the bias of all of the warp is one line of f; while some
// have passed a knot and some have not, min(f, knot) tells them apart. The network is continuous:
// that a key next to a knot is taken for one past it makes no difference.
class FireRows {
 public:
  // The lane's queries are at position and position + 8, the warp's from `row` on.
  __device__ __forceinline__ void Begin(const HeadBias& bias, int position, int row,
                                        const FireTable& table, FirePasses& passes) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      inverse_length_[half] = bias.FireInverseLength(position + half * 8);
      length_[half] = 1.0f / inverse_length_[half];
    }
    const float first = __shfl_sync(0xffffffffu, length_[0], 0),
                last = __shfl_sync(0xffffffffu, length_[1], 31);
#pragma unroll 1
    for (int i = Lane(); i < kHopperKnots; i += 32) {
      passes[i] = {INT_MAX, INT_MAX};
      if (i >= bias.FireSegments() - 1) continue;
      const float knot = table.knots[i].x;
      passes[i] = {Passes(bias, row, knot * first), Passes(bias, row + 15, knot * last)};
    }
  }

  // scores = bias of the tile from `first_key` on; the network has `knots`. The warp's queries
  // begin `row` after the block's.
  template <int kRows, int kKeys>
  __device__ __forceinline__ void Fill(int knots, int first_key, const FirePasses& passes,
                                       const FireTable& table, const FireStrip<kRows, kKeys>& strip,
                                       int row, float (&scores)[kKeys / 8][4]) const {
    static_assert(kKeys == kParts * kPart);
    const float2* pairs = PairsOfStrip(strip.values[0], strip.values[1], kRows - row);
    // Of each part, a byte each: knots that all queries have passed when it begins, that some have
    // passed when it ends.
    uint32_t passed = 0, reached = 0;
#pragma unroll
    for (int i = 0; i < kHopperKnots; i += 32) {
      if (i >= knots) break;
      const int2 from = passes[i + Lane()];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int begin = first_key + part * kPart;
        passed += Count(from.y <= begin) << 8 * part;
        reached += Count(from.x < begin + kPart) << 8 * part;
      }
    }
    float2 f[1 + kTogether];  // eight keys and eight queries further lie on the same diagonal
    f[0] = pairs[-4];
    if (Byte(reached, kParts - 1) == Byte(passed, 0)) {
      const float2 line = table.lines[Byte(passed, 0)];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) f[1 + j] = pairs[(part * kTogether + j) * 4];
        Line(line, f, scores + part * kTogether);
        f[0] = f[kTogether];
      }
      return;
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) f[1 + j] = pairs[(part * kTogether + j) * 4];
      // What bends do to the offset, the line behind them has.
      const int from = Byte(passed, part), to = Byte(reached, part);
      Line({table.lines[from].x, table.lines[to].y}, f, scores + part * kTogether);
#pragma unroll 1
      for (int i = from; i < to; ++i) Bend(table.knots[i], f, scores + part * kTogether);
      f[0] = f[kTogether];
    }
  }

 private:
  // Of a tile: few knots are passed in a part.
  static constexpr int kParts = 4, kTogether = 4, kPart = kTogether * 8;

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static uint32_t Count(bool is) {
    return static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, is)));
  }
  __device__ static int Byte(uint32_t bytes, int i) {
    return static_cast<int>(bytes >> 8 * i & 0xff);
  }

  // The first key at which a query at `row` has a FireDistance of at most f.
  __device__ __forceinline__ static int Passes(const HeadBias& bias, int row, float f) {
    const float distance = expm1f(fabsf(f)) / fabsf(bias.fire_c());
    return __float2int_ru(static_cast<float>(row) - copysignf(distance, f));
  }

  // Of one part of a tile: f of group j are f[1 + j] for the first query and f[j] for the second
  // one, without the query's length.
  __device__ __forceinline__ void Line(const float2& line, const float2 (&f)[1 + kTogether],
                                       float (*scores)[4]) const {
    const float slope[2] = {line.x * inverse_length_[0], line.x * inverse_length_[1]};
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      scores[j][0] = fmaf(f[1 + j].x, slope[0], line.y);
      scores[j][1] = fmaf(f[1 + j].y, slope[0], line.y);
      scores[j][2] = fmaf(f[j].x, slope[1], line.y);
      scores[j][3] = fmaf(f[j].y, slope[1], line.y);
    }
  }
  __device__ __forceinline__ void Bend(const float2& knot, const float2 (&f)[1 + kTogether],
                                       float (*scores)[4]) const {
    const float most[2] = {knot.x * length_[0], knot.x * length_[1]};
    const float slope[2] = {-knot.y * inverse_length_[0], -knot.y * inverse_length_[1]};
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      scores[j][0] = fmaf(fminf(f[1 + j].x, most[0]), slope[0], scores[j][0]);
      scores[j][1] = fmaf(fminf(f[1 + j].y, most[0]), slope[0], scores[j][1]);
      scores[j][2] = fmaf(fminf(f[j].x, most[1]), slope[1], scores[j][2]);
      scores[j][3] = fmaf(fminf(f[j].y, most[1]), slope[1], scores[j][3]);
    }
  }

  float length_[2], inverse_length_[2];
};

}  // namespace quintet::cuda
