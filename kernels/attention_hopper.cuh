// What the parts of the Hopper attention kernel share: sizes, shared memory, what one warpgroup
// tells the others.
#pragma once

#include <type_traits>

#include "kernels/attention_call.cuh"
#include "kernels/attention_hopper_fire.cuh"
#include "kernels/bulk_copy.cuh"
#include "kernels/wgmma.cuh"

namespace quintet::cuda {

constexpr int kGroupRows = 64;  // queries of a computing warpgroup
constexpr int kCacheWarps = 3;  // that copy keys and values from a cache

// Sizes of a block, by head_dim rounded up to kDimOf: kGroupsOf warpgroups compute, one copies.
template <int kDimOf, int kGroupsOf, int kKeysOf, int kStagesOf, bool kTurnsOf>
struct HopperSizes {
  static constexpr int kDim = kDimOf;
  static constexpr int kGroups = kGroupsOf;
  static constexpr int kKeys = kKeysOf;      // of a tile
  static constexpr int kStages = kStagesOf;  // tiles of keys, and of values, in shared memory
  static constexpr bool kTurns = kTurnsOf;   // warpgroups queue their products by turns
  static constexpr bool kReaches = false;    // keys that ALiBi silences are looked for
  static constexpr int kRows = kGroups * kGroupRows;
  // Of two warpgroups each begins its softmax while values are still being added; of three each
  // waits, and then its scores may stay as they are until their weights are known to be right.
  static constexpr bool kSettled = kGroups == 3;
  static constexpr int kThreads = (1 + kGroups) * kWarpgroup;
  // Of a thread that copies boxes, that copies rows, that computes.
  static constexpr int kBoxRegisters = kGroups == 2 ? 40 : 32;
  static constexpr int kRowRegisters = 56;
  template <bool kCached>
  static constexpr int kComputeRegisters = kGroups == 3 ? 160
                                           : kCached    ? 224
                                                        : 232;

  // The bias of a head at distances [-Reach, Reach]: past those, tiles are hidden or flat.
  __host__ __device__ static constexpr int Reach(int saturation) {
    const int reach = saturation + kGroupRows;
    return (reach > kRows ? reach : kRows) + kKeys;
  }
  // Odd multiples of 16, so that the two copies of a table differ in banks.
  static constexpr int kTable = (2 * Reach(kHopperSaturation) + 1 + 31) / 32 * 32 + 16;
};

// The same for a call with magnitudes. To look takes registers that whoever copies lacks: a kernel
// of its own, or 10 % of the others' speed.
template <typename S>
struct Reaching : S {
  static constexpr bool kReaches = true;
};

// Blocks of queries of one sequence, and how much they see: those of a causal one from level to
// level more, the others all the same.
struct SequenceBlocks {
  int level, blocks;
};
constexpr int kSortedSequences = 64;  // as many or fewer are dealt by what they see

// Vectors of a column mask in shared memory; those that it lacks are filled with what they stand
// for.
enum MaskVector { kLowerBegin, kLowerEnd, kUpperBegin, kUpperEnd, kMaskVectors };

// A block of queries of one head; rows 0: there is no more work.
struct QueryWork {
  int rows, position, kv_len, head;
  int sequence;
  int64_t row;  // in call.q
  bool any_keys;
  bool hide_after;  // keys after a query are hidden from it
};

// A tile of keys.
struct KeyWork {
  int begin;
  bool last, masked;
};

// A head's bias by distance, for tiles near the diagonal, in units of log2.
template <int kCount, bool kSettled>
struct HeadTable {
  float values[2][kCount];  // the second begins with the first's second value
  float before, after;      // past the near distances
};
// The same in units of scores before they are scaled, and twice: less what is before and less what
// is after the near distances. These two are in units of log2; ALiBi's slopes instead, 0 where keys
// are hidden.
template <int kCount>
struct HeadTable<kCount, true> {
  float values[2][2][kCount];
  float before, after;
};

// Sides of the diagonal that a tile lies on.
enum TileSide { kAcross, kBefore, kAfter, kTileSides };

// Factors of a product that adds ALiBi's bias from key to key of a tile on one side: sixteen equal
// values for each query, the slope in three pieces of which each rounds what those before leave,
// and the number of each key three times. In parts as DescribeParts has them.
template <typename T>
struct AlibiFactors {
  T slopes[2][kTileSides][2 * 64];  // of this and the next work; the second part is zero
  T keys[128 / 8 * 64];
};

// What FIRE's bias is made of: of this and the next work, of each warp that computes, of each tile.
template <typename S>
struct FireFactors {
  FireTable tables[2];
  FirePasses passes[S::kGroups * kWarpgroup / 32];
  FireStrip<S::kRows, S::kKeys> strips[S::kStages];
};
struct alignas(16) Nothing {};

// Full barriers are for who computes, empty ones for who copies.
template <int kStages>
struct HopperBarriers {
  uint64_t queries_full[2], queries_empty[2];
  uint64_t keys_full[kStages], keys_empty[kStages];
  uint64_t values_full[kStages], values_empty[kStages];
  uint64_t values_tail;  // values of a tile that has rows to be cleared
};

// Matrices of 64 channels each, as Describe wants them.
template <typename T, typename S, BiasKind kFunction>
struct alignas(1024) HopperMemory {
  T q[2][S::kDim / 64][S::kRows * 64];  // of this and the next block of queries
  T k[S::kStages][S::kDim / 64][S::kKeys * 64];
  T v[S::kStages][S::kDim / 64][S::kKeys * 64];
  // ALiBi's bias comes from products.
  static constexpr bool kAlibi = S::kSettled && kFunction == BiasKind::kAlibi;
  static constexpr bool kFire = kFunction == BiasKind::kFire;

  HeadTable<S::kTable, S::kSettled> tables[2];
  alignas(1024) T ones[16 * 64];  // a product with them adds up weights
  alignas(16) std::conditional_t<kAlibi, AlibiFactors<T>, Nothing> alibi;
  alignas(16) int32_t columns[S::kStages][kMaskVectors][S::kKeys];  // of a masked tile
  SequenceBlocks sequences[kSortedSequences];
  alignas(16) std::conditional_t<kFire, FireFactors<S>, Nothing> fire;
  QueryWork queries[2];
  KeyWork keys[S::kStages];
  HopperBarriers<S::kStages> barriers;
};

// Boxes of a block's queries and of a tile's keys and values.
struct HopperMaps {
  CUtensorMap q, k, v;
};

// AttendHopper for ALiBi and FIRE.
template <typename T>
void AttendHopperFunction(const AttentionCall& call, int64_t rows_total, Stream& stream);

}  // namespace quintet::cuda
