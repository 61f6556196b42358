// Declarations shared by the parts of the Hopper attention kernel (attention/hopper_kernel.cuh):
// tile shapes, shared memory layout, and the messages that the producer warpgroup sends to the
// consumer warpgroups.
#pragma once

#include <type_traits>

#include "kernels/attention/call.cuh"
#include "kernels/attention/hopper_fire.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace quintet::cuda {

constexpr int kConsumerRows = 64;  // query rows per consumer warpgroup
constexpr int kGatherWarps = 3;    // producer warps that gather K and V rows from the paged cache

// Compile-time parameters of one kernel instantiation. A CTA has one producer warpgroup and
// kConsumersOf consumer warpgroups.
template <int kDimOf, int kConsumersOf, int kKeysOf, int kStagesOf, bool kPingPongOf>
struct HopperTraits {
  // Head dimension, rounded up: 64 or 128.
  static constexpr int kDim = kDimOf;
  static constexpr int kConsumers = kConsumersOf;
  // Keys per K/V tile.
  static constexpr int kKeys = kKeysOf;
  // Number of pipeline stages. Each holds one K tile and one V tile in shared memory.
  static constexpr int kStages = kStagesOf;
  // Whether the consumer warpgroups issue their GEMMs alternately (ping-pong barrier).
  static constexpr bool kPingPong = kPingPongOf;
  // Whether K/V tiles in which ALiBi's bias makes every P 0 are skipped (AlibiTileSkipper).
  static constexpr bool kSkipsTiles = false;
  static constexpr int kRows = kConsumers * kConsumerRows;
  // Whether the softmax uses lazy rescaling (LazySoftmax). Lazy rescaling overwrites P and the
  // accumulators of the P V GEMM, so it must first wait for the P V GEMM of the previous tile. With
  // two consumer warpgroups it is not used: each warpgroup overlaps its softmax with that GEMM
  // instead.
  static constexpr bool kLazyRescale = kConsumers == 3;
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
  // Registers per thread: kTmaRegisters in a producer that issues TMA loads, kGatherRegisters in a
  // producer that gathers cache rows, kConsumerRegisters in a consumer.
  static constexpr int kTmaRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kGatherRegisters = 56;
  template <bool kCached>
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160
                                            : kCached       ? 224
                                                            : 232;

  // The bias table of a head covers distances (key position minus query position) [-Reach, Reach].
  // If the distance of even one (query, key) pair of a K/V tile is outside that range, the tile
  // does not need the table: all its pairs are then far from the diagonal, where they are hidden,
  // or have the same bias, or (ALiBi) have a bias that is linear in the distance.
  __host__ __device__ static constexpr int Reach(int saturation) {
    const int reach = saturation + kConsumerRows;
    return (reach > kRows ? reach : kRows) + kKeys;
  }
  // Number of entries in one copy of a bias table: an odd multiple of 16, so that the two copies of
  // the table start in different shared memory banks.
  static constexpr int kTable = (2 * Reach(kHopperSaturation) + 1 + 31) / 32 * 32 + 16;
};

// Variant of the parameters S for calls with row norms (AttentionCall::max_norms): the kernel skips
// the K/V tiles in which a bound of the scores shows that ALiBi's bias makes every P 0. This is a
// separate instantiation, because testing the bound needs registers that the producer warpgroup
// does not have: in the common kernel the test would cost all other calls 10 %.
template <typename S>
struct SkippingTiles : S {
  static constexpr bool kSkipsTiles = true;
};

// Number of query tiles of one sequence, and their cost for the tile scheduler; cost 1 is about the
// work of one K/V tile. Under causality, query tile i (counted from 0) costs level + i. Otherwise
// every tile costs `level`.
struct SequenceTiles {
  int level, tiles;
};
constexpr int kSortedSequences = 64;  // up to this many sequences, tiles are scheduled by cost

// Indices of the four arrays of MaskColumns (mask.h) in shared memory, each with one value per key
// of one K tile. An array that the call's mask does not have is filled with its default value.
enum MaskVector { kLowerBegin, kLowerEnd, kUpperBegin, kUpperEnd, kMaskVectors };

// Describes one query tile of one head. The producer writes the record for the consumers; the
// queries themselves are in another part of shared memory. rows == 0 means that no work is left.
struct WorkTileInfo {
  // Number of query rows in the tile, position of its first query, length of its sequence in keys,
  // head index.
  int rows, position, kv_len, head;
  int sequence;
  // First query row of the tile in call.q.
  int64_t row;
  // False if no query of the tile can see any key of the sequence. Then no K/V tile is loaded.
  bool any_keys;
  // Whether keys after a query are hidden from it (causality; asymmetric ALiBi for some heads).
  bool hide_after;
};

// Describes one K/V tile: the keys and values with the same kKeys consecutive indices. The producer
// writes the record for the consumers; the data of the tile is in a pipeline stage.
struct KvTileInfo {
  // Index of the tile's first key in its sequence.
  int begin;
  // last: whether this is the query tile's last K/V tile. masked: whether the mask (mask.h) hides
  // some (query, key) pair of this tile.
  bool last, masked;
};

// Bias of one head by distance (key position minus query position), for tiles near the diagonal, in
// log2 units. `values` has two copies, the second shifted by one entry, so that every pair of
// neighbours is 8-byte aligned in one of them.
template <int kCount, bool kLazyRescale>
struct HeadBiasTable {
  float values[2][kCount];  // values[1][i] == values[0][i + 1]
  float before, after;      // constant bias left and right of the table's distances
};
// HeadBiasTable for lazy rescaling. before, after: the constant bias left and right of the table's
// distances, times log2 e. values[side][copy]: the bias minus the constant (side 0: before, side 1:
// after), divided by the softmax scale so that it can be added to q k; copy 1 lacks the first
// entry. With ALiBi, both sides hold the bias without subtraction, and before and after are the
// slopes left and right of the diagonal times log2 e (0 where all keys are masked).
template <int kCount>
struct HeadBiasTable<kCount, true> {
  float values[2][2][kCount];
  float before, after;
};

// Position of a K/V tile relative to the diagonal. kAcross: on both sides of it. kBefore: left of
// it (all keys before all queries). kAfter: right of it.
enum TileSide { kAcross, kBefore, kAfter, kTileSides };

// Operands A and B of an extra k-step of the Q K^T wgmma. In a tile on one side of the diagonal,
// the k-step adds the part of ALiBi's bias that depends on the key: slope * j for key j of the
// tile. Every row of A holds (s0, s1, s2, 0, ...) with s0 = slope, s1 = slope - s0, s2 = slope - s0
// - s1, each rounded to T. Row j of B holds (j, j, j, 0, ...). Both consist of 8 x 8 core matrices
// (MakeStridedSmemDescriptor); because the rows of A are equal, all groups of eight queries share
// one core matrix of `slopes`.
template <typename T>
struct AlibiOperands {
  T slopes[2][kTileSides][2 * 64];  // current and next work tile; the second part is zero
  T keys[128 / 8 * 64];
};

// Shared memory for FIRE's bias. tables: the bias function of the current work tile's head and of
// the next work tile's head. crossings: for each consumer warp, the keys at which its queries pass
// from one linear segment of that function to the next. strips: for each pipeline stage, the
// logarithms of the query-key distances that occur in its K tile.
template <typename S>
struct FireSharedMemory {
  FireTable tables[2];
  FireCrossings crossings[S::kConsumers * kWarpgroup / 32];
  FireStrip<S::kRows, S::kKeys> strips[S::kStages];
};
struct alignas(16) NoMember {};

// mbarriers of the pipeline. The producer signals the `full` barriers, the consumers the `empty`
// ones.
template <int kStages>
struct HopperBarriers {
  uint64_t queries_full[2], queries_empty[2];
  uint64_t keys_full[kStages], keys_empty[kStages];
  uint64_t values_full[kStages], values_empty[kStages];
  uint64_t values_tail;  // a V tile with rows past the sequence's end has arrived
};

// Shared memory of one CTA. q, k and v are split into matrices of 64 channels (128-byte rows) in
// the 128-byte swizzle that MakeSmemDescriptor expects.
template <typename T, typename S, BiasKind kFunction>
struct alignas(1024) HopperSharedMemory {
  T q[2][S::kDim / 64][S::kRows * 64];  // [current and next work tile][...]
  T k[S::kStages][S::kDim / 64][S::kKeys * 64];
  T v[S::kStages][S::kDim / 64][S::kKeys * 64];
  // Whether ALiBi's bias is added by wgmma (AlibiOperands).
  static constexpr bool kAlibi = S::kLazyRescale && kFunction == BiasKind::kAlibi;
  static constexpr bool kFire = kFunction == BiasKind::kFire;

  HeadBiasTable<S::kTable, S::kLazyRescale> tables[2];
  alignas(1024) T ones[16 * 64];  // B operand that sums the rows of P
  alignas(16) std::conditional_t<kAlibi, AlibiOperands<T>, NoMember> alibi;
  alignas(16) int32_t columns[S::kStages][kMaskVectors][S::kKeys];  // column mask of a masked tile
  SequenceTiles sequences[kSortedSequences];
  alignas(16) std::conditional_t<kFire, FireSharedMemory<S>, NoMember> fire;
  WorkTileInfo queries[2];
  KvTileInfo keys[S::kStages];
  HopperBarriers<S::kStages> barriers;
};

// TMA tensor maps: their boxes are a query tile of one head, a K tile and a V tile.
struct HopperTensorMaps {
  CUtensorMap q, k, v;
};

// AttendHopper for calls with ALiBi (attention/hopper_alibi.cu) and with FIRE
// (attention/hopper_fire.cu).
template <typename T>
void AttendHopperAlibi(const AttentionCall& call, int64_t rows_total, CudaStream& stream);
template <typename T>
void AttendHopperFire(const AttentionCall& call, int64_t rows_total, CudaStream& stream);

}  // namespace quintet::cuda
