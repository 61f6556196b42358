// FIRE's position bias, added to the Q K^T accumulators of the Hopper attention kernel.
#pragma once

#include <climits>
#include <cmath>

#include "kernels/attention/call.cuh"
#include "kernels/attention/softmax.cuh"

namespace quintet::cuda {

// FIRE's network of one head: the bias, divided by the softmax scale, as a piecewise linear
// function of f, FIRE's normalised distance (position_bias.h). Knots (breakpoints) and lines are in
// descending order of f: lines[i] applies between knots i - 1 and i.
struct FireTable {
  float2 lines[kHopperKnots + 1];  // {slope, offset}
  // One entry for each knot i, the breakpoint between lines[i] and lines[i + 1]: x is the value of
  // f at the knot; y is the slope of lines[i] minus that of lines[i + 1].
  float2 knots[kHopperKnots];
};

// FireDistance (bias.cuh) of every diagonal of a tile pair: a query tile of kRows queries and a K
// tile of kKeys keys. Entry i is for the distance (key position minus query position) b - kRows +
// i, where b is the position of the first key minus that of the first query. Stored twice, the
// second copy shifted by one value, so that any two neighbours are 8-byte aligned in one copy; the
// copies start in different shared memory banks.
template <int kRows, int kKeys>
struct FireStrip {
  static constexpr int kCount = kRows + kKeys;
  static_assert(kCount % 32 == 0);
  float values[2][kCount + 16];
};

// For each knot (breakpoint of FIRE's network), the first keys past it. The network's input f is
// the normalised distance between a query and a key; it falls as the key position rises. x: first
// key whose f with the first of a warp's 16 queries is at or below the knot. y: first key whose f
// with the last of these queries, and therefore with all 16, is at or below the knot. Lane l writes
// and reads only entries with index % 32 == l.
using FireCrossings = int2[kHopperKnots];

// Fills `strip`: entry i is FireDistance (bias.cuh) of the distance begin + i (key position minus
// query position), computed with the approximate logarithm lg2.approx. c is FIRE's parameter
// (PositionBias::fire_c) and must be >= 0. Executed by one warp.
template <int kRows, int kKeys>
__device__ __forceinline__ void WriteFireStrip(float c, int begin, FireStrip<kRows, kKeys>& strip) {
  constexpr float kLn2 = 0.6931471805599453f;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float delta = static_cast<float>(begin + lane);
#pragma unroll 4
  for (int i = lane; i < strip.kCount; i += 32) {
    float f;  // the argument is at least 1, so subnormals do not matter
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(f) : "f"(fmaf(c, fabsf(delta), 1.0f)));
    f *= delta < 0.0f ? kLn2 : -kLn2;
    strip.values[0][i] = f;
    if (i > 0) strip.values[1][i - 1] = f;
    delta += 32.0f;
  }
}

// Writes the FireTable of one head. `unit` must be 1 / (softmax scale * log2 e): it turns the bias
// times log2 e into units of q k. Executed by one warp.
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

// FIRE's bias of a warp's 16 query rows; each lane holds the two rows of its C fragment (mma.cuh).
// The bias is a piecewise linear function of f, the input of FIRE's network; its pieces meet at the
// knots. f falls as the key position rises. Therefore the keys of one query cross the knots from
// the highest to the lowest, and each query crosses a knot at a slightly higher key position than
// the query before it. Between crossings the same linear piece applies to all 16 rows. Where only
// some rows have crossed a knot, a term in min(f, knot) (see Bend) gives each element the piece on
// its own side of the knot. The function is continuous; hence computing a crossing one key too
// early or too late does not change the result.
class FireBias {
 public:
  // Computes `crossings` for this warp's queries, the first of which has position `row`. This
  // lane's two queries have positions `position` and `position` + 8.
  __device__ __forceinline__ void Begin(const HeadBias& bias, int position, int row,
                                        const FireTable& table, FireCrossings& crossings) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      inverse_length_[half] = bias.FireInverseLength(position + half * 8);
      length_[half] = 1.0f / inverse_length_[half];
    }
    const float first = __shfl_sync(0xffffffffu, length_[0], 0),
                last = __shfl_sync(0xffffffffu, length_[1], 31);
#pragma unroll 1
    for (int i = Lane(); i < kHopperKnots; i += 32) {
      crossings[i] = {INT_MAX, INT_MAX};
      if (i >= bias.FireSegments() - 1) continue;
      const float knot = table.knots[i].x;
      crossings[i] = {FirstKeyBelow(bias, row, knot * first),
                      FirstKeyBelow(bias, row + 15, knot * last)};
    }
  }

  // scores = FIRE's bias of the K tile that starts at key first_key. knots: number of knots
  // (breakpoints) of FIRE's network. row: index of the warp's first query in the query tile.
  template <int kRows, int kKeys>
  __device__ __forceinline__ void Fill(int knots, int first_key, const FireCrossings& crossings,
                                       const FireTable& table, const FireStrip<kRows, kKeys>& strip,
                                       int row, float (&scores)[kKeys / 8][4]) const {
    static_assert(kKeys == kParts * kPart);
    const float2* pairs = PairsOfStrip(strip.values[0], strip.values[1], kRows - row);
    // Each of these two words has one counter (a byte) per part (32 keys) of the tile. A query has
    // crossed a knot at a key if f of this query and key is at or below the knot. `passed`: number
    // of knots that all 16 queries have crossed at the part's first key. `reached`: number of knots
    // that at least one query has crossed at the part's last key.
    uint32_t passed = 0, reached = 0;
#pragma unroll
    for (int i = 0; i < kHopperKnots; i += 32) {
      if (i >= knots) break;
      const int2 from = crossings[i + Lane()];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int begin = first_key + part * kPart;
        passed += Count(from.y <= begin) << 8 * part;
        reached += Count(from.x < begin + kPart) << 8 * part;
      }
    }
    float2 f[1 + kTogether];  // moving 8 keys and 8 queries on stays on the same diagonal
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
      // From the first to the last key of this part of the tile, FIRE's distance f falls past the
      // knots (breakpoints) [from, to), which are in descending order. lines[from] applies to f
      // above all of them, lines[to] to f below all. Line computes f * (slope of lines[from]) +
      // (offset of lines[to]). For each knot, Bend subtracts min(f, knot) * bend, where bend is the
      // slope above the knot minus the slope below it. For f below the knot this corrects the
      // slope; for f above it, the offset, because adjacent lines meet there.
      const int from = Byte(passed, part), to = Byte(reached, part);
      Line({table.lines[from].x, table.lines[to].y}, f, scores + part * kTogether);
#pragma unroll 1
      for (int i = from; i < to; ++i) Bend(table.knots[i], f, scores + part * kTogether);
      f[0] = f[kTogether];
    }
  }

 private:
  // Tiles are processed in parts of 32 keys; a part then has few knots (breakpoints of the bias).
  static constexpr int kParts = 4, kTogether = 4, kPart = kTogether * 8;

  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static uint32_t Count(bool is) {
    return static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, is)));
  }
  __device__ static int Byte(uint32_t bytes, int i) {
    return static_cast<int>(bytes >> 8 * i & 0xff);
  }

  // Returns the first key whose FireDistance from a query at position `row` is at most f.
  __device__ __forceinline__ static int FirstKeyBelow(const HeadBias& bias, int row, float f) {
    const float distance = expm1f(fabsf(f)) / fabsf(bias.fire_c());
    return __float2int_ru(static_cast<float>(row) - copysignf(distance, f));
  }

  // Line and Bend handle one part (32 keys) of a tile. The array f holds FireDistance of the lane's
  // queries and keys; FIRE's normalised distance (position_bias.h) is this value divided by a
  // number that depends on the query. For group j of eight keys, f[1 + j] is for the lane's first
  // query. f[j] is for its second query, 8 positions later, whose distances to group j are equal to
  // the first query's distances to group j - 1.
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
