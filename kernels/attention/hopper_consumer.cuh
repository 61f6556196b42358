// Consumer warpgroup (mainloop and epilogue) of the Hopper attention kernel.
#pragma once

#include "kernels/attention/hopper.cuh"
#include "kernels/attention/hopper_fire.cuh"
#include "kernels/attention/hopper_softmax.cuh"

namespace quintet::cuda {

// Computes 64 query rows of each of the CTA's work tiles.
template <typename T, typename S, bool kCached, BiasKind kFunction>
class HopperConsumer {
  using Memory = HopperSharedMemory<T, S, kFunction>;
  using Softmax = std::conditional_t<S::kLazyRescale, LazySoftmax<T>, OnlineSoftmax>;
  static constexpr int kDim = S::kDim, kKeys = S::kKeys;
  static constexpr int kMatrixBytes = kKeys * 128;
  static constexpr bool kLazyRescale = S::kLazyRescale;
  static constexpr bool kAlibi = Memory::kAlibi, kFire = Memory::kFire;
  // Whether the P V GEMM of the previous tile is issued before the Q K^T GEMM. True for FIRE with
  // two consumer warpgroups: a warpgroup writes FIRE's bias to the score accumulators while the P V
  // GEMM runs.
  static constexpr bool kPvFirst = kFire && !kLazyRescale;
  // How row sums of P are computed: by a column of ones in V (lazy rescaling), by a second wgmma of
  // the rounded P and ones (kSumByWgmma), or else in f32 by OnlineSoftmax, from the unrounded P.
  static constexpr bool kSumByWgmma = !kLazyRescale && kFunction != BiasKind::kNone;
  // Number of pairs of bias table entries that a lane loads while the Q K^T GEMM runs. Limited by
  // the number of free registers.
  static constexpr int kPrefetchedPairs = kFunction != BiasKind::kNone ? 0 : kKeys / 8 + 1;

 public:
  __device__ __forceinline__ HopperConsumer(const AttentionCall& call, Memory& memory, int group)
      : call_(call), memory_(memory), barriers_(memory.barriers), group_(group) {}

  __device__ __forceinline__ void Run() {
    if (S::kPingPong && group_ == S::kConsumers - 1) NamedBarrierArrive(1, 2 * kWarpgroup);
    for (;; q_state_.Advance()) {
      BarrierWait(SharedAddress(&barriers_.queries_full[q_state_.stage]), q_state_.parity);
      const WorkTileInfo& work = memory_.queries[q_state_.stage];
      if (work.rows == 0) return;
      position_ = work.position + group_ * kConsumerRows;
      BeginWorkTile(work);
      softmax_ = Softmax();
#pragma unroll
      for (auto& n : out_) n[0] = n[1] = n[2] = n[3] = 0.0f;
#pragma unroll
      for (int e = 0; e < 4; ++e) row_sums_[0][e] = 0.0f;
      if (work.any_keys) Attend(work);
      StoreOutput(work);
      Release(barriers_.queries_empty[q_state_.stage]);
    }
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // First query row of this warp within its warpgroup.
  __device__ static int WarpRow() { return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16; }

  // Releases a pipeline stage to the producer. All threads arrive, at no cost: if one lane per warp
  // did so for the others, compute-sanitizer's racecheck would not see the order of their reads.
  __device__ __forceinline__ static void Release(uint64_t& empty) {
    BarrierArrive(SharedAddress(&empty));
  }

  // Mainloop over the K/V tiles of a work tile. The Q K^T GEMM of a tile overlaps with the P V GEMM
  // of the previous tile. FIRE's bias is written to the score accumulators before the Q K^T GEMM,
  // which then adds to them. Tiles that causality hides come last and are not computed (SkipTiles).
  __device__ __forceinline__ void Attend(const WorkTileInfo& work) {
    WaitFull(barriers_.keys_full[kv_state_.stage], kv_state_.parity);
    KvTileInfo tile = memory_.keys[kv_state_.stage];
    if (!IsVisible(tile)) return SkipTiles(tile, false);
    if constexpr (kFire) {
      BeginFire(work);
      FillScores(tile);
    }
    float rescale[2];
    StartQkGemm(tile);
    WarpgroupWait<0>();
    ComputeTileProbs(tile, rescale);
    while (!tile.last) {
      if constexpr (!kLazyRescale) RoundTileProbs();
      const PipelineState<S::kStages> before = kv_state_;
      kv_state_.Advance();
      WaitFull(barriers_.keys_full[kv_state_.stage], kv_state_.parity);
      tile = memory_.keys[kv_state_.stage];
      if (!IsVisible(tile)) {
        FinishPvGemm(before);
        return SkipTiles(tile, true);
      }
      if constexpr (kPvFirst) WaitAndStartPvGemm(before);
      if constexpr (kFire) FillScores(tile);
      PingPongWait();
      StartQkGemm(tile);
      if constexpr (!kPvFirst) WaitAndStartPvGemm(before);
      PingPongArrive();
      ComputeTileProbs(tile, rescale);
      WarpgroupWait<0>();
      FenceAccumulators();
      // Keeps the compiler from rounding scores_ into probs_ before the P V GEMM, which reads
      // probs_, has finished.
      WarpgroupFenceOperand(scores_);
      Release(barriers_.values_empty[before.stage]);
      if constexpr (!kLazyRescale) Rescale(out_, rescale);
      if constexpr (kSumByWgmma) Rescale(row_sums_, rescale);
    }
    if constexpr (!kLazyRescale) RoundTileProbs();
    FinishPvGemm(kv_state_);
    kv_state_.Advance();
  }

  // True if causality does not hide the whole tile from this warpgroup: some query of the warpgroup
  // may see some key of the tile.
  __device__ __forceinline__ bool IsVisible(const KvTileInfo& tile) const {
    return tile.begin <= last_begin_;
  }

  // Skips K/V tile `tile` and all following ones of the work tile, releasing their pipeline stages.
  // `turn`: whether this warpgroup takes its ping-pong turn for `tile`; it does not for the first
  // K/V tile of a work tile, but does for all others.
  __device__ __forceinline__ void SkipTiles(KvTileInfo tile, bool turn) {
    for (;; turn = true) {
      Release(barriers_.keys_empty[kv_state_.stage]);
      if (turn) {
        PingPongWait();
        PingPongArrive();
      }
      WaitFull(barriers_.values_full[kv_state_.stage], kv_state_.parity);
      Release(barriers_.values_empty[kv_state_.stage]);
      kv_state_.Advance();
      if (tile.last) return;
      WaitFull(barriers_.keys_full[kv_state_.stage], kv_state_.parity);
      tile = memory_.keys[kv_state_.stage];
    }
  }

  __device__ __forceinline__ void PingPongWait() const {
    if constexpr (S::kPingPong) NamedBarrierSync(1 + group_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void PingPongArrive() const {
    if constexpr (S::kPingPong) {
      NamedBarrierArrive(1 + (group_ + 1 == S::kConsumers ? 0 : group_ + 1), 2 * kWarpgroup);
    }
  }

  __device__ __forceinline__ static void WaitFull(uint64_t& barrier, uint32_t parity) {
    BarrierWait(SharedAddress(&barrier), parity);
    if constexpr (kCached) FenceViewAsyncShared();
  }

  // Computes, for one work tile, which K/V tiles this warpgroup sees and in which of them the bias
  // is the same for all (query, key) pairs (IsFlat).
  __device__ __forceinline__ void BeginWorkTile(const WorkTileInfo& work) {
    const bool any = group_ * kConsumerRows < work.rows;
    last_begin_ = !any ? -1 : work.hide_after ? position_ + kConsumerRows - 1 : INT_MAX;
    kv_len_ = work.kv_len;
    // IsFlat is true for K/V tiles whose first key is <= flat_until_ or >= flat_from_. The
    // distances (key - query position) in a tile range from d - (kConsumerRows - 1) to d + kKeys -
    // 1, where d is the position of the tile's first key minus that of this warpgroup's first
    // query.
    flat_until_ = INT_MAX;
    flat_from_ = INT_MAX;
    if (kFunction == BiasKind::kAlibi) {
      flat_until_ = INT_MIN;
    } else if (call_.bias.kind == BiasKind::kTable) {
      flat_until_ = position_ - call_.bias.saturation - (kKeys - 1);
      if (!call_.causal) flat_from_ = position_ + call_.bias.saturation + kConsumerRows - 1;
    } else if (call_.causal) {
      flat_until_ = position_ - (kKeys - 1);
    }
  }

  // True if causality hides no (query, key) pair of the K/V tile, and all pairs have the same bias.
  // FIRE's bias is ignored, because scores_ already include it. Never true with ALiBi.
  __device__ __forceinline__ bool IsFlat(const KvTileInfo& tile) const {
    return tile.begin <= flat_until_ || tile.begin >= flat_from_;
  }
  // True if no (query, key) pair of the K/V tile needs a bias or a mask of its own: the bias is the
  // same for all pairs (IsFlat), no pair is masked, no key is past the sequence's end, and the bias
  // is neither ALiBi nor FIRE.
  __device__ __forceinline__ bool IsPlain(const KvTileInfo& tile) const {
    return (kFunction == BiasKind::kNone && !tile.masked && tile.begin <= kv_len_ - kKeys) &&
           IsFlat(tile);
  }

  __device__ __forceinline__ float FlatBias(const KvTileInfo& tile) const {
    const auto& table = memory_.tables[q_state_.stage];
    return call_.bias.kind != BiasKind::kTable ? 0.0f
           : tile.begin <= flat_until_         ? table.before
                                               : table.after;
  }

  // Returns the address of the bias table entries for this lane's first query and first two keys of
  // a K/V tile. delta: position of the tile's first key minus that of the warpgroup's first query.
  __device__ __forceinline__ const float2* BiasPairs(int delta) const {
    const auto& values = memory_.tables[q_state_.stage].values;
    return PairsOfStrip(values[0], values[1], S::Reach(call_.bias.saturation) + delta - WarpRow());
  }

  // For a tile near the diagonal, with lazy rescaling only: waits for the Q K^T GEMM and adds the
  // bias in two parts. `row_bias` gets the constant bias far from the diagonal: table.after if the
  // tile's centre is right of the diagonal and the call is not causal, else table.before; 0 for
  // ALiBi. Adds each pair's bias minus row_bias to scores_, but skips parts of 32 keys in which it
  // is 0. delta: position of the tile's first key minus that of the warpgroup's first query.
  __device__ __forceinline__ void AddNearBias(int delta, float (&row_bias)[2]) {
    constexpr int kTogether = 4, kParts = kKeys / 8 / kTogether, kPart = kTogether * 8;
    const auto& table = memory_.tables[q_state_.stage];
    // On either side of a query, the bias is constant for keys at least `far` positions away. `far`
    // is a bias table's saturation distance; 0 without a bias. ALiBi's bias is never constant.
    const int far = call_.bias.kind == BiasKind::kTable ? call_.bias.saturation
                    : kAlibi                            ? INT_MAX / 2
                                                        : 0;
    const bool after = !kAlibi && !call_.causal && delta + kKeys / 2 > kConsumerRows / 2;
    row_bias[0] = row_bias[1] = kAlibi ? 0.0f : after ? table.after : table.before;
    const int first = delta - WarpRow();
    const int begin = after ? 0 : max(1 - far - first, 0) / kPart;
    const int end = after ? min(max(far + 15 + kPart - 1 - first, 0) / kPart, kParts) : kParts;
    const float2* pairs = PairsOfStrip(table.values[after][0], table.values[after][1],
                                       S::Reach(call_.bias.saturation) + first);
    float2 near[2][1 + kTogether];  // double buffer of two parts
    const auto load = [&](float2(&to)[1 + kTogether], int part) {
#pragma unroll
      for (int i = 0; i <= kTogether; ++i) to[i] = pairs[(part * kTogether + i - 1) * 4];
    };
    load(near[0], min(begin + begin % 2, kParts - 2));
    WaitForScores();
    load(near[1], min(begin | 1, kParts - 1));
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      if (part < begin || part >= end) continue;
      const auto& pair = near[part % 2];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        float(&to)[4] = scores_[part * kTogether + j];
        to[0] += pair[1 + j].x;
        to[1] += pair[1 + j].y;
        to[2] += pair[j].x;
        to[3] += pair[j].y;
      }
      if (part + 2 < kParts) load(near[part % 2], part + 2);
    }
  }

  // For ALiBi: returns the side of the diagonal on which all keys of the tile are. Returns kAcross
  // if the diagonal crosses the tile, or if all keys on that side are hidden (by causality or by
  // asymmetric ALiBi).
  __device__ __forceinline__ TileSide SideOf(const KvTileInfo& tile) const {
    const int delta = tile.begin - position_;
    const auto& table = memory_.tables[q_state_.stage];
    return delta <= -(kKeys - 1) && table.before != 0.0f       ? kBefore
           : delta >= kConsumerRows - 1 && table.after != 0.0f ? kAfter
                                                               : kAcross;
  }
  // For ALiBi and a tile on one side of the diagonal whose keys are visible: returns in `row_bias`,
  // for each query, the part of the bias that is the same for all keys of the tile. The Q K^T GEMM
  // adds the other part, slope * (index of the key in the tile), see AlibiOperands.
  __device__ __forceinline__ void AlibiRowBias(TileSide side, int delta,
                                               float (&row_bias)[2]) const {
    const auto& table = memory_.tables[q_state_.stage];
    const float slope = side == kBefore ? table.before : -table.after;
    const int first = delta - WarpRow() - Lane() / 4;
    row_bias[0] = slope * static_cast<float>(first);
    row_bias[1] = slope * static_cast<float>(first - 8);
  }

  // Called only in kernels without lazy rescaling. Adds ALiBi's bias to a tile on one visible side
  // of the diagonal. There it is linear in the key's index and is the sum of two parts. The part
  // that depends on the key is added to scores_, which are first scaled to log2 units; the part
  // that depends on the query is returned in `row_bias`. If the tile is on both sides of the
  // diagonal or on a hidden side, does nothing and returns false.
  __device__ __forceinline__ bool AddAlibiLine(int delta, float scale, float (&row_bias)[2]) {
    const int lo = delta - (kConsumerRows - 1), hi = delta + kKeys - 1;
    if (lo < 0 && hi > 0) return false;
    // slope: change of the bias from one key to the next.
    const int reach = S::Reach(call_.bias.saturation);
    const auto& values = memory_.tables[q_state_.stage].values[0];
    const float slope = lo >= 0 ? values[reach + 1] : -values[reach - 1];
    if (isinf(slope)) return false;
    const float first = static_cast<float>(delta - WarpRow() - Lane() / 4);
    row_bias[0] = slope * first;
    row_bias[1] = slope * (first - 8.0f);
    const float lane = slope * static_cast<float>(Lane() % 4 * 2);
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      const float at[2] = {fmaf(slope, static_cast<float>(8 * j), lane),
                           fmaf(slope, static_cast<float>(8 * j + 1), lane)};
#pragma unroll
      for (int e = 0; e < 4; ++e) scores_[j][e] = fmaf(scores_[j][e], scale, at[e % 2]);
    }
    return true;
  }

  // Issues scores_ = Q K^T of the tile in pipeline stage kv_state_ (asynchronous). With kAlibi, an
  // extra k-step adds the part of ALiBi's bias that depends on the key. With kFire, the
  // accumulators already hold FIRE's bias, and the GEMM adds Q K^T to it.
  __device__ __forceinline__ void StartQkGemm(const KvTileInfo& tile) {
    // The wgmma descriptors of ALiBi's operands are computed before the first wgmma; otherwise
    // ptxas would insert waits.
    uint64_t slopes = 0, numbers = 0;
    if constexpr (kAlibi) {
      const auto& alibi = memory_.alibi;
      slopes = MakeStridedSmemDescriptor(SharedAddress(alibi.slopes[q_state_.stage][SideOf(tile)]),
                                         0, 128);
      numbers = MakeStridedSmemDescriptor(SharedAddress(alibi.keys), 128, 0);
    }
    WarpgroupFenceOperand(scores_);
    WarpgroupArrive();
    const uint64_t q = MakeSmemDescriptor(
        SharedAddress(memory_.q[q_state_.stage][0]) + group_ * kConsumerRows * 128, 16);
    const uint64_t k = MakeSmemDescriptor(SharedAddress(memory_.k[kv_state_.stage][0]), 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int in_row = step % 4 * 32;
      Wgmma<T>(scores_, q + (step / 4 * S::kRows * 128 + in_row) / 16,
               k + (step / 4 * kMatrixBytes + in_row) / 16, kFire || step > 0);
    }
    if constexpr (kAlibi) Wgmma<T>(scores_, slopes, numbers, true);
    WarpgroupCommitBatch();
  }

  // Issues out_ += P V (asynchronous).
  __device__ __forceinline__ void StartPvGemm(int stage) {
    FenceAccumulators();
    WarpgroupArrive();
    const uint32_t values = SharedAddress(memory_.v[stage][0]);
    const uint64_t v = MakeSmemDescriptor(
        values, kLazyRescale ? SharedAddress(memory_.ones) - values : kMatrixBytes);
    const uint64_t ones = MakeConstantSmemDescriptor(SharedAddress(memory_.ones));
    // kStep: added to V's descriptor for the next 16 rows. It raises the start address by kRows
    // 16-byte units. With lazy rescaling the column stride is the distance from the start address
    // to a column of ones. That column stays in place, so kStep also lowers the stride by kRows.
    constexpr int64_t kRows = 16 * 128 / 16, kStep = kLazyRescale ? kRows - (kRows << 16) : kRows;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      Wgmma<T>(out_, probs_[step], v + static_cast<uint64_t>(step * kStep), true);
      if constexpr (kSumByWgmma) Wgmma<T>(row_sums_, probs_[step], ones, true);
    }
    WarpgroupCommitBatch();
  }
  __device__ __forceinline__ void FenceAccumulators() {
    WarpgroupFenceOperand(out_);
    if constexpr (kSumByWgmma) WarpgroupFenceOperand(row_sums_);
  }

  __device__ __forceinline__ void WaitAndStartPvGemm(const PipelineState<S::kStages>& state) {
    WaitFull(barriers_.values_full[state.stage], state.parity);
    StartPvGemm(state.stage);
  }

  // Issues and completes out_ += P V of the last tile that this warpgroup sees; releases its V
  // stage.
  __device__ __forceinline__ void FinishPvGemm(const PipelineState<S::kStages>& state) {
    WaitAndStartPvGemm(state);
    WarpgroupWait<0>();
    FenceAccumulators();
    Release(barriers_.values_empty[state.stage]);
  }

  // Waits for the Q K^T GEMM, adds bias and mask, computes P, and releases the K stage. Everything
  // that does not depend on the scores is computed before the wait; hence the softmax of a plain
  // tile (IsPlain) starts right after its GEMM.
  __device__ __forceinline__ void ComputeTileProbs(const KvTileInfo& tile, float (&rescale)[2]) {
    float scale = call_.scale * kLog2E, row_bias[2] = {0.0f, 0.0f}, largest[2];
    if (IsPlain(tile)) {
      row_bias[0] = row_bias[1] = FlatBias(tile);
      WaitForScores();
      Release(barriers_.keys_empty[kv_state_.stage]);
      if constexpr (!kLazyRescale) {
        LargestScores(scores_, largest);
        Exponentiate(largest, scale, row_bias, rescale);
      }
    } else if constexpr (kLazyRescale) {
      AddLazyBias(tile, row_bias);
    } else {
      AddBiasAndMask(tile, scale, row_bias);
      LargestScores(scores_, largest);
      Exponentiate(largest, scale, row_bias, rescale);
    }
    if constexpr (kLazyRescale) ComputeProbsLazily(scale, row_bias);
  }
  // Softmax with lazy rescaling: computes P = 2^(score - ref_max). If some P reaches 2, or some
  // query has no reference maximum (ref_max) yet, raises ref_max, rescales the row sums and P V
  // sums in out_, and computes P again.
  __device__ __forceinline__ void ComputeProbsLazily(float scale, const float (&row_bias)[2]) {
    WarpgroupFenceOperand(out_);
#pragma unroll 1
    for (bool rise = !softmax_.has_ref_max();; rise = true) {
      if (rise) {
        float rescale[2];
        softmax_.RaiseRefMax(scores_, scale, row_bias, rescale);
        Rescale(out_, rescale);
      }
      if (!softmax_.ComputeProbs(scores_, scale, row_bias, probs_) || rise) return;
    }
  }
  __device__ __forceinline__ void WaitForScores() {
    WarpgroupWait<kLazyRescale || kPvFirst ? 0 : 1>();
    WarpgroupFenceOperand(scores_);
  }
  // Computes P in place of scores_. It must be called within the branches of ComputeTileProbs, so
  // that this code and the later wait for the P V GEMM are in different basic blocks: ptxas hoists
  // a wgmma wait to the start of the wait's basic block.
  __device__ __forceinline__ void Exponentiate(const float (&largest)[2], float scale,
                                               const float (&row_bias)[2], float (&rescale)[2]) {
    softmax_.template ComputeProbs<!kSumByWgmma>(scores_, largest, scale, row_bias, rescale);
    WarpgroupFenceOperand(scores_);
  }

  // For kernels without lazy rescaling: waits for scores_, adds bias and mask, frees the K stage.
  // Bias that is the same for all keys of this tile is returned in `row_bias` (per query, log2
  // units). Other bias is added to scores_ after scaling them to log2 units; `scale` becomes 1.
  __device__ __forceinline__ void AddBiasAndMask(const KvTileInfo& tile, float& scale,
                                                 float (&row_bias)[2]) {
    // Position of the tile's first key minus the position of the warpgroup's first query.
    const int delta = tile.begin - position_;
    const bool flat = IsFlat(tile);
    const float2* pairs = nullptr;
    float2 prefetched[kPrefetchedPairs + 1];
    if (!flat) {
      pairs = BiasPairs(delta);
#pragma unroll
      for (int i = 0; i < kPrefetchedPairs; ++i) prefetched[i] = pairs[4 * (i - 1)];
    }
    WaitForScores();
    MaskAndReleaseKeys(tile);
    if (flat) {
      row_bias[0] = row_bias[1] = FlatBias(tile);
      return;
    }
    if (kFunction != BiasKind::kAlibi || !AddAlibiLine(delta, scale, row_bias)) {
      AddPairedStrip(
          scores_,
          [&](int j) { return j + 1 < kPrefetchedPairs ? prefetched[j + 1] : pairs[4 * j]; },
          scale);
    }
    scale = 1.0f;
  }

  // Variant of AddBiasAndMask for the softmax with lazy rescaling (LazySoftmax). scores_ stay
  // products q k, not yet multiplied by the softmax scale. The part of the bias that is the same
  // for all keys of this tile is returned in `row_bias` (one value per query, log2 units).
  __device__ __forceinline__ void AddLazyBias(const KvTileInfo& tile, float (&row_bias)[2]) {
    const int delta = tile.begin - position_;
    const TileSide side = kAlibi ? SideOf(tile) : kAcross;
    if (side != kAcross) {
      AlibiRowBias(side, delta, row_bias);
      WaitForScores();
    } else if (IsFlat(tile)) {
      row_bias[0] = row_bias[1] = FlatBias(tile);
      WaitForScores();
    } else {
      AddNearBias(delta, row_bias);
    }
    MaskAndReleaseKeys(tile);
  }

  // Sets scores_ to -inf for keys past the sequence's end and for (query, key) pairs that the mask
  // (mask.h) hides, and releases the K stage to the producer.
  __device__ __forceinline__ void MaskAndReleaseKeys(const KvTileInfo& tile) {
    if (!tile.masked) Release(barriers_.keys_empty[kv_state_.stage]);
    const int keys = kv_len_ - tile.begin;
    if (keys < kKeys) HideFrom(scores_, keys);
    if (!tile.masked) return;
    ApplyColumnMask();
    Release(barriers_.keys_empty[kv_state_.stage]);
  }

  __device__ __forceinline__ FireCrossings& Crossings() const {
    return memory_.fire.crossings[group_ * 4 + WarpRow() / 16];
  }
  __device__ __forceinline__ void BeginFire(const WorkTileInfo& work) {
    const HeadBias bias(call_.bias, call_.causal, work.head, call_.heads);
    const int row = position_ + WarpRow();
    fire_.Begin(bias, row + Lane() / 4, row, memory_.fire.tables[q_state_.stage], Crossings());
  }
  // Sets scores_ to FIRE's bias of the K tile in pipeline stage kv_state_.
  __device__ __forceinline__ void FillScores(const KvTileInfo& tile) {
    fire_.Fill(call_.bias.segments - 1, tile.begin, Crossings(),
               memory_.fire.tables[q_state_.stage], memory_.fire.strips[kv_state_.stage],
               group_ * kConsumerRows + WarpRow(), scores_);
  }

  // Sets to -inf the scores_ that the mask (mask.h) hides. HideColumns reads only the arrays that
  // the mask has if these are (1) lower_begin, (2) lower_begin and lower_end, or (3) lower_begin
  // and upper_end. For any other mask it reads all four.
  __device__ __forceinline__ void ApplyColumnMask() {
    const MaskColumns& mask = call_.mask;
    if (mask.upper_end == nullptr) {
      mask.lower_end == nullptr ? HideColumns<false, false, false>()
                                : HideColumns<true, false, false>();
    } else if (mask.lower_end == nullptr && mask.upper_begin == nullptr) {
      HideColumns<false, true, false>();
    } else {
      HideColumns<true, true, true>();
    }
  }
  template <bool kHasLowerEnd, bool kHasUpperEnd, bool kHasUpperBegin>
  __device__ __forceinline__ void HideColumns() {
    const auto& columns = memory_.columns[kv_state_.stage];
    const int row = position_ + WarpRow() + Lane() / 4;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) {
      const int at = j * 8 + Lane() % 4 * 2;
      const auto pair = [&](int vector) {
        return *reinterpret_cast<const int2*>(columns[vector] + at);
      };
      const int2 lower_begin = pair(kLowerBegin);
      int2 lower_end{}, upper_begin{}, upper_end{};
      if constexpr (kHasLowerEnd) lower_end = pair(kLowerEnd);
      if constexpr (kHasUpperBegin) upper_begin = pair(kUpperBegin);
      if constexpr (kHasUpperEnd) upper_end = pair(kUpperEnd);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const auto of = [e](const int2& two) { return e % 2 == 0 ? two.x : two.y; };
        const int at_row = row + e / 2 * 8;
        bool lower = at_row >= of(lower_begin), upper = kHasUpperEnd;
        if constexpr (kHasLowerEnd) lower &= at_row < of(lower_end);
        if constexpr (kHasUpperEnd) upper &= at_row < of(upper_end);
        if constexpr (kHasUpperBegin) upper &= at_row >= of(upper_begin);
        if (lower || upper) scores_[j][e] = -INFINITY;
      }
    }
  }

  __device__ __forceinline__ void RoundTileProbs() {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) RoundProbs<T>(scores_, step, probs_[step]);
  }

  // Epilogue: stores out_ / row sum. Of every eight channels of a row, each of four lanes holds
  // two; the lanes exchange channels so that each lane stores 16 contiguous bytes.
  __device__ __forceinline__ void StoreOutput(const WorkTileInfo& work) const {
    const int t = Lane() % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = InverseSum(half);
      const int row = group_ * kConsumerRows + WarpRow() + half * 8 + Lane() / 4;
      T* out = static_cast<T*>(call_.out) + (work.row + row) * call_.out_row +
               work.head * call_.out_head + t * 8;
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 4) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = PackPair<T>(out_[n + i][2 * half] * scale, out_[n + i][2 * half + 1] * scale);
        }
        const uint4 piece = Transpose(words, t);
        if (row < work.rows && (n + t) * 8 < call_.head_dim) {
          *reinterpret_cast<uint4*>(out + n * 8) = piece;
        }
      }
    }
  }

  // 1 / row sum of P; 0 if the query sees no key.
  __device__ __forceinline__ float InverseSum(int half) const {
    if constexpr (!kLazyRescale && !kSumByWgmma) {
      return softmax_.InverseSum(half);
    } else {
      const float sum =
          kLazyRescale ? out_[kDim / 8 + kLazyRescale - 1][2 * half] : row_sums_[0][2 * half];
      return sum > 0.0f ? 1.0f / sum : 0.0f;
    }
  }

  // Transposes a 4 x 4 matrix of words among four lanes: lane t of the four passes row t in `words`
  // and gets column t, that is, word t of each lane.
  __device__ __forceinline__ static uint4 Transpose(const uint32_t (&words)[4], int t) {
    const bool odd = t % 2 != 0, high = t / 2 != 0;
    const uint32_t near[2] = {__shfl_xor_sync(0xffffffffu, odd ? words[0] : words[1], 1),
                              __shfl_xor_sync(0xffffffffu, odd ? words[2] : words[3], 1)};
    // pairs[h] holds `words[2 h + t % 2]` of the lanes t and t ^ 1, the even lane's word first.
    const uint32_t pairs[2][2] = {{odd ? near[0] : words[0], odd ? words[1] : near[0]},
                                  {odd ? near[1] : words[2], odd ? words[3] : near[1]}};
    const uint32_t far[2] = {__shfl_xor_sync(0xffffffffu, high ? pairs[0][0] : pairs[1][0], 2),
                             __shfl_xor_sync(0xffffffffu, high ? pairs[0][1] : pairs[1][1], 2)};
    return high ? uint4{far[0], far[1], pairs[1][0], pairs[1][1]}
                : uint4{pairs[0][0], pairs[0][1], far[0], far[1]};
  }

  const AttentionCall& call_;
  Memory& memory_;
  HopperBarriers<S::kStages>& barriers_;
  const int group_;
  PipelineState<2> q_state_;
  PipelineState<S::kStages> kv_state_;
  int position_;    // position of the warpgroup's first query
  int kv_len_;      // number of keys in its sequence
  int last_begin_;  // first key of the last tile that may be visible to this warpgroup
  // Limits for IsFlat: all pairs of a K/V tile have the same bias if the tile's first key is <=
  // flat_until_ or >= flat_from_.
  int flat_until_, flat_from_;

  float scores_[kKeys / 8][4];
  uint32_t probs_[kKeys / 16][4];
  float out_[kDim / 8 + kLazyRescale][4];
  float row_sums_[1][4];  // kSumByWgmma: row sums of P, equal in every column
  Softmax softmax_;
  FireBias fire_;  // kFire only
};

}  // namespace quintet::cuda
