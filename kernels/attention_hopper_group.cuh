// A warpgroup that computes, of the Hopper attention kernel.
#pragma once

#include "kernels/attention_hopper.cuh"
#include "kernels/attention_hopper_fire.cuh"
#include "kernels/attention_softmax.cuh"

namespace quintet::cuda {

// Its 64 queries of each of the block's works.
template <typename T, typename S, bool kCached, BiasKind kFunction>
class HopperGroup {
  using Memory = HopperMemory<T, S>;
  static constexpr int kDim = S::kDim, kKeys = S::kKeys;
  static constexpr int kMatrixBytes = kKeys * 128;

 public:
  __device__ __forceinline__ HopperGroup(const AttentionCall& call, Memory& memory, int group)
      : call_(call),
        memory_(memory),
        barriers_(memory.barriers),
        group_(group),
        flat_from_(kFunction == BiasKind::kAlibi        ? 1 << 30
                   : call.bias.kind == BiasKind::kTable ? call.bias.saturation
                                                        : -(1 << 30)),
        biased_(call.causal || call.bias.kind == BiasKind::kTable ||
                call.bias.kind == BiasKind::kAlibi) {}

  __device__ __forceinline__ void Run() {
    if (S::kTurns && group_ == S::kGroups - 1) ArriveThreads(1, 2 * kWarpgroup);
    for (;; queries_.Advance()) {
      Wait(SharedAddress(&barriers_.queries_full[queries_.stage]), queries_.parity);
      const QueryWork& work = memory_.queries[queries_.stage];
      if (work.rows == 0) return;
      position_ = work.position + group_ * kGroupRows;
      softmax_ = OnlineSoftmax();
      fire_begun_ = false;
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out_[n][e] = 0.0f;
      }
      if (work.any_keys) Attend(work);
      Write(work);
      Release(barriers_.queries_empty[queries_.stage]);
    }
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // First query of this warp in its warpgroup.
  __device__ static int WarpRow() { return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16; }

  // This warp is done with what a full barrier announced.
  __device__ __forceinline__ static void Release(uint64_t& empty) {
    __syncwarp();
    if (Lane() == 0) Arrive(SharedAddress(&empty));
  }

  // The scores of a tile are computed while the values of the one before it are being added. Tiles
  // of which the group sees nothing come last.
  __device__ __forceinline__ void Attend(const QueryWork& work) {
    WaitFull(barriers_.keys_full[place_.stage], place_.parity);
    KeyWork tile = memory_.keys[place_.stage];
    if (!Sees(work, tile)) return Pass(tile, false);
    float shrink[2];
    BeginScores();
    WaitForProducts<0>();
    Weigh(work, tile, shrink);
    while (!tile.last) {
      Round();
      const RingPlace<S::kStages> before = place_;
      place_.Advance();
      WaitFull(barriers_.keys_full[place_.stage], place_.parity);
      tile = memory_.keys[place_.stage];
      if (!Sees(work, tile)) {
        AddValues(before);
        return Pass(tile, true);
      }
      WaitForTurn();
      BeginScores();
      WaitFull(barriers_.values_full[before.stage], before.parity);
      BeginValues(before.stage);
      EndTurn();
      WaitForProducts<1>();
      Weigh(work, tile, shrink);
      WaitForProducts<0>();
      Pin(out_);
      Pin(scores_);  // they are rounded into registers that the products have read until now
      Release(barriers_.values_empty[before.stage]);
      Shrink(out_, shrink);
    }
    Round();
    AddValues(place_);
    place_.Advance();
  }

  // The group has queries, and some of them are not before all keys of the tile.
  __device__ __forceinline__ bool Sees(const QueryWork& work, const KeyWork& tile) const {
    return group_ * kGroupRows < work.rows &&
           !(work.hide_after && tile.begin > position_ + kGroupRows - 1);
  }

  // Lets this tile and those after it go by; `turn`: it is not the work's first one.
  __device__ __forceinline__ void Pass(KeyWork tile, bool turn) {
    for (;; turn = true) {
      Release(barriers_.keys_empty[place_.stage]);
      if (turn) {
        WaitForTurn();
        EndTurn();
      }
      WaitFull(barriers_.values_full[place_.stage], place_.parity);
      Release(barriers_.values_empty[place_.stage]);
      place_.Advance();
      if (tile.last) return;
      WaitFull(barriers_.keys_full[place_.stage], place_.parity);
      tile = memory_.keys[place_.stage];
    }
  }

  __device__ __forceinline__ void WaitForTurn() const {
    if constexpr (S::kTurns) SyncThreads(1 + group_, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void EndTurn() const {
    if constexpr (S::kTurns) {
      ArriveThreads(1 + (group_ + 1 == S::kGroups ? 0 : group_ + 1), 2 * kWarpgroup);
    }
  }

  __device__ __forceinline__ static void WaitFull(uint64_t& barrier, uint32_t parity) {
    Wait(SharedAddress(&barrier), parity);
    if constexpr (kCached) ShowToAsyncProxy();
  }

  // Bias and hidden keys of a tile: what is the same for all pairs to shift, in units of log2;
  // otherwise to scores_, which are in such units, too, from then on.
  __device__ __forceinline__ void AddBias(const KeyWork& tile, float& scale, float& shift) {
    if (!biased_) return;
    const int reach = S::Reach(call_.bias.saturation);
    int delta = tile.begin - position_;  // of the first query and the first key
    const int lo = delta - (kGroupRows - 1), hi = delta + kKeys - 1;
    const auto& table = memory_.table[queries_.stage];
    if ((!call_.causal || hi <= 0) && (hi <= -flat_from_ || lo >= flat_from_)) {
      if (call_.bias.kind == BiasKind::kTable) shift = table[0][lo < 0 ? 0 : 2 * reach];
      return;
    }
    if (kFunction == BiasKind::kAlibi) {
      // Where the table ends, ALiBi goes on as straight as within it.
      const int inside = min(max(delta, kGroupRows - reach), reach - kKeys);
      const float one = table[0][reach + (delta < 0 ? -1 : 1)];
      if (delta != inside) shift = one * static_cast<float>(abs(delta) - abs(inside));
      delta = inside;
    }
    AddPairedStrip(scores_, table[0], table[1], reach + delta - WarpRow(), scale);
    scale = 1.0f;
  }

  // scores_ = q k^T of the tile at place_, under way.
  __device__ __forceinline__ void BeginScores() {
    Pin(scores_);
    BeginProducts();
    const uint64_t q =
        Describe(SharedAddress(memory_.q[queries_.stage][0]) + group_ * kGroupRows * 128, 16);
    const uint64_t k = Describe(SharedAddress(memory_.k[place_.stage][0]), 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int in_row = step % 4 * 32;
      Wgmma<T>(scores_, q + (step / 4 * S::kRows * 128 + in_row) / 16,
               k + (step / 4 * kMatrixBytes + in_row) / 16, step > 0);
    }
    CommitProducts();
  }

  // out_ += weights v, under way.
  __device__ __forceinline__ void BeginValues(int stage) {
    Pin(out_);
    BeginProducts();
    const uint64_t v = Describe(SharedAddress(memory_.v[stage][0]), kMatrixBytes);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      Wgmma<T>(out_, weights_[step], v + step * 16 * 128 / 16, true);
    }
    CommitProducts();
  }

  // out_ += weights v of the last tile that the group sees.
  __device__ __forceinline__ void AddValues(const RingPlace<S::kStages>& place) {
    WaitFull(barriers_.values_full[place.stage], place.parity);
    BeginValues(place.stage);
    WaitForProducts<0>();
    Pin(out_);
    Release(barriers_.values_empty[place.stage]);
  }

  // Scores, complete, become weights; the tile's keys are released.
  __device__ __forceinline__ void Weigh(const QueryWork& work, const KeyWork& tile,
                                        float (&shrink)[2]) {
    float scale = call_.scale * kLog2E, shift = 0.0f;
    const int keys = work.kv_len - tile.begin;
    Pin(scores_);
    if (!tile.masked) Release(barriers_.keys_empty[place_.stage]);
    AddBias(tile, scale, shift);
    if (kFunction == BiasKind::kFire) {
      AddFire(work, tile, scale);
      scale = 1.0f;
    }
    if (keys < kKeys) HideFrom(scores_, keys);
    if (tile.masked) {
      HideMasked();
      Release(barriers_.keys_empty[place_.stage]);
    }
    using Rounded = std::conditional_t<kFunction != BiasKind::kNone, T, float>;
    softmax_.template Weigh<Rounded>(scores_, scale, shift, shrink);
  }

  // To units of log2.
  __device__ __forceinline__ void AddFire(const QueryWork& work, const KeyWork& tile, float scale) {
    const HeadBias bias(call_.bias, call_.causal, work.head, call_.heads);
    const int row = position_ + WarpRow() + Lane() / 4, key = tile.begin + Lane() % 4 * 2;
    if (!fire_begun_) fire_.Begin(bias, row, tile.begin);
    fire_begun_ = true;
    fire_.Add(bias, scores_, key - row, scale);
  }

  // By the vectors that the mask has.
  __device__ __forceinline__ void HideMasked() {
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
    const auto& columns = memory_.columns[place_.stage];
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

  __device__ __forceinline__ void Round() {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) RoundWeights<T>(scores_, step, weights_[step]);
  }

  // out_ / sum. Four lanes have a row's channels two by two; they trade them, so that each writes
  // 16 bytes.
  __device__ __forceinline__ void Write(const QueryWork& work) const {
    const int t = Lane() % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale = softmax_.InverseSum(half);
      const int row = group_ * kGroupRows + WarpRow() + half * 8 + Lane() / 4;
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

  // Lane t of four gets word t of each.
  __device__ __forceinline__ static uint4 Transpose(const uint32_t (&words)[4], int t) {
    const bool odd = t % 2 != 0, high = t / 2 != 0;
    const uint32_t near[2] = {__shfl_xor_sync(0xffffffffu, odd ? words[0] : words[1], 1),
                              __shfl_xor_sync(0xffffffffu, odd ? words[2] : words[3], 1)};
    // Words t - t % 2 and the next one of this lane's pair of lanes, for channels 0..1 and 2..3.
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
  const int flat_from_;  // distance from which on the bias is flat
  const bool biased_;    // some tiles are not
  RingPlace<2> queries_;
  RingPlace<S::kStages> place_;
  int position_;  // of the group's first query

  float scores_[kKeys / 8][4];
  uint32_t weights_[kKeys / 16][4];
  float out_[kDim / 8][4];
  OnlineSoftmax softmax_;
  FireRows fire_;  // FIRE alone
  bool fire_begun_;
};

}  // namespace quintet::cuda
