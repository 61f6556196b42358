// A warpgroup that computes, of the Hopper attention kernel.
#pragma once

#include "kernels/attention_hopper.cuh"
#include "kernels/attention_hopper_fire.cuh"
#include "kernels/attention_hopper_softmax.cuh"

namespace quintet::cuda {

// Its 64 queries of each of the block's works.
template <typename T, typename S, bool kCached, BiasKind kFunction>
class HopperGroup {
  using Memory = HopperMemory<T, S, kFunction>;
  using Softmax = std::conditional_t<S::kSettled, SettledSoftmax<T>, OnlineSoftmax>;
  static constexpr int kDim = S::kDim, kKeys = S::kKeys;
  static constexpr int kMatrixBytes = kKeys * 128;
  static constexpr bool kSettled = S::kSettled;
  static constexpr bool kAlibi = Memory::kAlibi, kFire = Memory::kFire;
  // Of two warpgroups, scores begin with FIRE's bias while values are still being added.
  static constexpr bool kValuesFirst = kFire && !kSettled;
  // Weights are added up by the tensor cores, rounded as they are for the values: either values
  // have a column of ones more, or there is a product with ones.
  static constexpr bool kSumByProducts = !kSettled && kFunction != BiasKind::kNone;
  // Pairs of a table are asked for while a tile is being scored, as many as there are registers
  // for.
  static constexpr int kAhead = kFunction != BiasKind::kNone ? 0 : kKeys / 8 + 1;

 public:
  __device__ __forceinline__ HopperGroup(const AttentionCall& call, Memory& memory, int group)
      : call_(call), memory_(memory), barriers_(memory.barriers), group_(group) {}

  __device__ __forceinline__ void Run() {
    if (S::kTurns && group_ == S::kGroups - 1) ArriveThreads(1, 2 * kWarpgroup);
    for (;; queries_.Advance()) {
      Wait(SharedAddress(&barriers_.queries_full[queries_.stage]), queries_.parity);
      const QueryWork& work = memory_.queries[queries_.stage];
      if (work.rows == 0) return;
      position_ = work.position + group_ * kGroupRows;
      LookAhead(work);
      softmax_ = Softmax();
#pragma unroll
      for (auto& n : out_) n[0] = n[1] = n[2] = n[3] = 0.0f;
#pragma unroll
      for (int e = 0; e < 4; ++e) sums_[0][e] = 0.0f;
      if (work.any_keys) Attend(work);
      Write(work);
      Release(barriers_.queries_empty[queries_.stage]);
    }
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // First query of this warp in its warpgroup.
  __device__ static int WarpRow() { return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16; }

  // Done with what a full barrier announced. One lane could say so for its warp, but racecheck does
  // not see the order of the other lanes' reads then; it takes no longer.
  __device__ __forceinline__ static void Release(uint64_t& empty) { Arrive(SharedAddress(&empty)); }

  // The scores of a tile are computed while the values of the one before it are being added; FIRE's
  // bias, to which they are added, before that. Tiles of which the group sees nothing come last.
  __device__ __forceinline__ void Attend(const QueryWork& work) {
    WaitFull(barriers_.keys_full[place_.stage], place_.parity);
    KeyWork tile = memory_.keys[place_.stage];
    if (!Sees(tile)) return Pass(tile, false);
    if constexpr (kFire) {
      BeginFire(work);
      FillScores(tile);
    }
    float shrink[2];
    BeginScores(tile);
    WaitForProducts<0>();
    Weigh(tile, shrink);
    while (!tile.last) {
      if constexpr (!kSettled) Round();
      const RingPlace<S::kStages> before = place_;
      place_.Advance();
      WaitFull(barriers_.keys_full[place_.stage], place_.parity);
      tile = memory_.keys[place_.stage];
      if (!Sees(tile)) {
        AddValues(before);
        return Pass(tile, true);
      }
      if constexpr (kValuesFirst) BeginValuesOf(before);
      if constexpr (kFire) FillScores(tile);
      WaitForTurn();
      BeginScores(tile);
      if constexpr (!kValuesFirst) BeginValuesOf(before);
      EndTurn();
      Weigh(tile, shrink);
      WaitForProducts<0>();
      PinSums();
      Pin(scores_);  // they are rounded into registers that the products have read until now
      Release(barriers_.values_empty[before.stage]);
      if constexpr (!kSettled) Shrink(out_, shrink);
      if constexpr (kSumByProducts) Shrink(sums_, shrink);
    }
    if constexpr (!kSettled) Round();
    AddValues(place_);
    place_.Advance();
  }

  // Some of the group's queries are not before all keys of the tile.
  __device__ __forceinline__ bool Sees(const KeyWork& tile) const {
    return tile.begin <= last_begin_;
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

  // Which tiles are what, for the group's queries of this work.
  __device__ __forceinline__ void LookAhead(const QueryWork& work) {
    const bool any = group_ * kGroupRows < work.rows;
    last_begin_ = !any ? -1 : work.hide_after ? position_ + kGroupRows - 1 : INT_MAX;
    kv_len_ = work.kv_len;
    // Queries and keys of a tile are at distances from its own - (kGroupRows - 1) to its own +
    // kKeys - 1.
    flat_until_ = INT_MAX;
    flat_from_ = INT_MAX;
    if (kFunction == BiasKind::kAlibi) {
      flat_until_ = INT_MIN;
    } else if (call_.bias.kind == BiasKind::kTable) {
      flat_until_ = position_ - call_.bias.saturation - (kKeys - 1);
      if (!call_.causal) flat_from_ = position_ + call_.bias.saturation + kGroupRows - 1;
    } else if (call_.causal) {
      flat_until_ = position_ - (kKeys - 1);
    }
  }

  // All pairs of a tile are seen by bias and causality, with the same bias.
  __device__ __forceinline__ bool Flat(const KeyWork& tile) const {
    return tile.begin <= flat_until_ || tile.begin >= flat_from_;
  }
  // There is nothing but that to a tile.
  __device__ __forceinline__ bool Plain(const KeyWork& tile) const {
    return (kFunction == BiasKind::kNone && !tile.masked && tile.begin <= kv_len_ - kKeys) &&
           Flat(tile);
  }

  __device__ __forceinline__ float FlatBias(const KeyWork& tile) const {
    const auto& table = memory_.tables[queries_.stage];
    return call_.bias.kind != BiasKind::kTable ? 0.0f
           : tile.begin <= flat_until_         ? table.before
                                               : table.after;
  }

  // What the table has for the lane at a tile's first keys.
  __device__ __forceinline__ const float2* Pairs(int delta) const {
    const auto& values = memory_.tables[queries_.stage].values;
    return PairsOfStrip(values[0], values[1], S::Reach(call_.bias.saturation) + delta - WarpRow());
  }

  // scores_ under way, with the table's bias less what is the same for all pairs of a query, which
  // goes to shift. Keys go by kTogether groups of eight: not all are near the diagonal.
  __device__ __forceinline__ void AddNear(int delta, float (&shift)[2]) {
    constexpr int kTogether = 4, kParts = kKeys / 8 / kTogether, kPart = kTogether * 8;
    const auto& table = memory_.tables[queries_.stage];
    // What is far is only known of a table; without a bias, keys up to the query are as far.
    const int far = call_.bias.kind == BiasKind::kTable ? call_.bias.saturation
                    : kAlibi                            ? INT_MAX / 2
                                                        : 0;
    const bool after = !kAlibi && !call_.causal && delta + kKeys / 2 > kGroupRows / 2;
    shift[0] = shift[1] = kAlibi ? 0.0f : after ? table.after : table.before;
    const int first = delta - WarpRow();
    const int begin = after ? 0 : max(1 - far - first, 0) / kPart;
    const int end = after ? min(max(far + 15 + kPart - 1 - first, 0) / kPart, kParts) : kParts;
    const float2* pairs = PairsOfStrip(table.values[after][0], table.values[after][1],
                                       S::Reach(call_.bias.saturation) + first);
    float2 near[2][1 + kTogether];  // of two parts, by turns
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

  // The side of the diagonal where all of a tile is seen, under ALiBi.
  __device__ __forceinline__ TileSide Side(const KeyWork& tile) const {
    const int delta = tile.begin - position_;
    const auto& table = memory_.tables[queries_.stage];
    return delta <= -(kKeys - 1) && table.before != 0.0f    ? kBefore
           : delta >= kGroupRows - 1 && table.after != 0.0f ? kAfter
                                                            : kAcross;
  }
  // Of ALiBi's bias, what products have not added on that side.
  __device__ __forceinline__ void ShiftAlibi(TileSide side, int delta, float (&shift)[2]) const {
    const auto& table = memory_.tables[queries_.stage];
    const float slope = side == kBefore ? table.before : -table.after;
    const int first = delta - WarpRow() - Lane() / 4;
    shift[0] = slope * static_cast<float>(first);
    shift[1] = slope * static_cast<float>(first - 8);
  }

  // ALiBi of a tile on one side of the diagonal, where it is seen; false: it is not such a tile.
  __device__ __forceinline__ bool AddStraight(int delta, float scale, float (&shift)[2]) {
    const int lo = delta - (kGroupRows - 1), hi = delta + kKeys - 1;
    if (lo < 0 && hi > 0) return false;
    // Bias of a key one further to the right.
    const int reach = S::Reach(call_.bias.saturation);
    const auto& values = memory_.tables[queries_.stage].values[0];
    const float slope = lo >= 0 ? values[reach + 1] : -values[reach - 1];
    if (isinf(slope)) return false;
    const float first = static_cast<float>(delta - WarpRow() - Lane() / 4);
    shift[0] = slope * first;
    shift[1] = slope * (first - 8.0f);
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

  // scores_ = q k^T of the tile at place_, under way, and kAlibi's bias from key to key; kFire's is
  // there.
  __device__ __forceinline__ void BeginScores(const KeyWork& tile) {
    uint64_t slopes = 0, numbers = 0;  // known before the products begin, or ptxas waits for them
    if constexpr (kAlibi) {
      const auto& alibi = memory_.alibi;
      slopes = DescribeParts(SharedAddress(alibi.slopes[queries_.stage][Side(tile)]), 0, 128);
      numbers = DescribeParts(SharedAddress(alibi.keys), 128, 0);
    }
    Pin(scores_);
    BeginProducts();
    const uint64_t q =
        Describe(SharedAddress(memory_.q[queries_.stage][0]) + group_ * kGroupRows * 128, 16);
    const uint64_t k = Describe(SharedAddress(memory_.k[place_.stage][0]), 16);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      const int in_row = step % 4 * 32;
      Wgmma<T>(scores_, q + (step / 4 * S::kRows * 128 + in_row) / 16,
               k + (step / 4 * kMatrixBytes + in_row) / 16, kFire || step > 0);
    }
    if constexpr (kAlibi) Wgmma<T>(scores_, slopes, numbers, true);
    CommitProducts();
  }

  // out_ += weights v, under way.
  __device__ __forceinline__ void BeginValues(int stage) {
    PinSums();
    BeginProducts();
    const uint32_t values = SharedAddress(memory_.v[stage][0]);
    const uint64_t v =
        Describe(values, kSettled ? SharedAddress(memory_.ones) - values : kMatrixBytes);
    const uint64_t ones = DescribeConstant(SharedAddress(memory_.ones));
    // Sixteen rows further; a column of ones stays where it is.
    constexpr int64_t kRows = 16 * 128 / 16, kStep = kSettled ? kRows - (kRows << 16) : kRows;
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      Wgmma<T>(out_, weights_[step], v + static_cast<uint64_t>(step * kStep), true);
      if constexpr (kSumByProducts) Wgmma<T>(sums_, weights_[step], ones, true);
    }
    CommitProducts();
  }
  __device__ __forceinline__ void PinSums() {
    Pin(out_);
    if constexpr (kSumByProducts) Pin(sums_);
  }

  __device__ __forceinline__ void BeginValuesOf(const RingPlace<S::kStages>& place) {
    WaitFull(barriers_.values_full[place.stage], place.parity);
    BeginValues(place.stage);
  }

  // out_ += weights v of the last tile that the group sees.
  __device__ __forceinline__ void AddValues(const RingPlace<S::kStages>& place) {
    BeginValuesOf(place);
    WaitForProducts<0>();
    PinSums();
    Release(barriers_.values_empty[place.stage]);
  }

  // Scores under way become weights; the tile's keys are released. What a tile needs is known
  // before its scores are, so that nothing is between them and a plain tile's softmax.
  __device__ __forceinline__ void Weigh(const KeyWork& tile, float (&shrink)[2]) {
    float scale = call_.scale * kLog2E, shift[2] = {0.0f, 0.0f}, largest[2];
    if (Plain(tile)) {
      shift[0] = shift[1] = FlatBias(tile);
      WaitForScores();
      Release(barriers_.keys_empty[place_.stage]);
      if constexpr (!kSettled) {
        LargestScores(scores_, largest);
        Exponentiate(largest, scale, shift, shrink);
      }
    } else if constexpr (kSettled) {
      AddSettledBias(tile, shift);
    } else {
      AddBiasAndMask(tile, scale, shift);
      LargestScores(scores_, largest);
      Exponentiate(largest, scale, shift, shrink);
    }
    if constexpr (kSettled) Settle(scale, shift);
  }
  // Scores become rounded weights.
  __device__ __forceinline__ void Settle(float scale, const float (&shift)[2]) {
    Pin(out_);
#pragma unroll 1
    for (bool rise = !softmax_.settled();; rise = true) {
      if (rise) {
        float shrink[2];
        softmax_.Rise(scores_, scale, shift, shrink);
        Shrink(out_, shrink);
      }
      if (!softmax_.Weigh(scores_, scale, shift, weights_) || rise) return;
    }
  }
  __device__ __forceinline__ void WaitForScores() {
    WaitForProducts<kSettled || kValuesFirst ? 0 : 1>();
    Pin(scores_);
  }
  // ptxas moves a wait for products up to where a basic block begins: this one ends before that.
  __device__ __forceinline__ void Exponentiate(const float (&largest)[2], float scale,
                                               const float (&shift)[2], float (&shrink)[2]) {
    softmax_.template Weigh<!kSumByProducts>(scores_, largest, scale, shift, shrink);
    Pin(scores_);
  }

  // What is the same for all pairs of a query to shift, in units of log2; otherwise to scores_,
  // which are in such units, too, from then on.
  __device__ __forceinline__ void AddBiasAndMask(const KeyWork& tile, float& scale,
                                                 float (&shift)[2]) {
    const int delta = tile.begin - position_;  // of the first query and the first key
    const bool flat = Flat(tile);
    const float2* pairs = nullptr;
    float2 ahead[kAhead + 1];
    if (!flat) {
      pairs = Pairs(delta);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) ahead[i] = pairs[4 * (i - 1)];
    }
    WaitForScores();
    HideAndRelease(tile);
    if (flat) {
      shift[0] = shift[1] = FlatBias(tile);
      return;
    }
    if (kFunction != BiasKind::kAlibi || !AddStraight(delta, scale, shift)) {
      AddPairedStrip(
          scores_, [&](int j) { return j + 1 < kAhead ? ahead[j + 1] : pairs[4 * j]; }, scale);
    }
    scale = 1.0f;
  }

  // The same of settled weights: scores_ stay in their units.
  __device__ __forceinline__ void AddSettledBias(const KeyWork& tile, float (&shift)[2]) {
    const int delta = tile.begin - position_;
    const TileSide side = kAlibi ? Side(tile) : kAcross;
    if (side != kAcross) {
      ShiftAlibi(side, delta, shift);
      WaitForScores();
    } else if (Flat(tile)) {
      shift[0] = shift[1] = FlatBias(tile);
      WaitForScores();
    } else {
      AddNear(delta, shift);
    }
    HideAndRelease(tile);
  }

  // What lies behind the sequence or is masked; the tile's keys are released.
  __device__ __forceinline__ void HideAndRelease(const KeyWork& tile) {
    if (!tile.masked) Release(barriers_.keys_empty[place_.stage]);
    const int keys = kv_len_ - tile.begin;
    if (keys < kKeys) HideFrom(scores_, keys);
    if (!tile.masked) return;
    HideMasked();
    Release(barriers_.keys_empty[place_.stage]);
  }

  __device__ __forceinline__ FirePasses& Passes() const {
    return memory_.fire.passes[group_ * 4 + WarpRow() / 16];
  }
  __device__ __forceinline__ void BeginFire(const QueryWork& work) {
    const HeadBias bias(call_.bias, call_.causal, work.head, call_.heads);
    const int row = position_ + WarpRow();
    fire_.Begin(bias, row + Lane() / 4, row, memory_.fire.tables[queries_.stage], Passes());
  }
  // scores_ = bias of the tile at place_.
  __device__ __forceinline__ void FillScores(const KeyWork& tile) {
    fire_.Fill(call_.bias.segments - 1, tile.begin, Passes(), memory_.fire.tables[queries_.stage],
               memory_.fire.strips[place_.stage], group_ * kGroupRows + WarpRow(), scores_);
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
      const float scale = InverseSum(half);
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

  // 1 / sum of a query's weights; 0 if it saw no key.
  __device__ __forceinline__ float InverseSum(int half) const {
    if constexpr (!kSettled && !kSumByProducts) {
      return softmax_.InverseSum(half);
    } else {
      const float sum = kSettled ? out_[kDim / 8 + kSettled - 1][2 * half] : sums_[0][2 * half];
      return sum > 0.0f ? 1.0f / sum : 0.0f;
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
  RingPlace<2> queries_;
  RingPlace<S::kStages> place_;
  int position_;                // of the group's first query
  int kv_len_;                  // of its sequence
  int last_begin_;              // of a tile that the group sees something of
  int flat_until_, flat_from_;  // begin of tiles that are flat

  float scores_[kKeys / 8][4];
  uint32_t weights_[kKeys / 16][4];
  float out_[kDim / 8 + kSettled][4];
  float sums_[1][4];  // kSumByProducts: of the weights, in every column
  Softmax softmax_;
  FireRows fire_;  // FIRE alone
};

}  // namespace quintet::cuda
