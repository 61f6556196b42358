// The producer warpgroup of the Hopper attention kernel. Warp 0 iterates over the CTA's work tiles
// and issues the TMA loads of Q, K and V and the copies of the mask arrays (mask.h); warp 1 writes
// the bias tables.
#pragma once

#include "kernels/attention/hopper_alibi_skip.cuh"
#include "kernels/attention/hopper_tile_scheduler.cuh"

namespace quintet::cuda {

// Iterator over the K/V tiles in which the mask (mask.h) leaves some key visible to some query of
// the query tile. A warp tests 32 tiles at once, one per lane; all its lanes must call Next
// together.
class VisibleTiles {
 public:
  // Constructs an iterator over the tiles of keys [0, end), for queries at positions [position,
  // position + rows).
  __device__ VisibleTiles(const SequenceMask& mask, int position, int rows, int end, int tile_keys)
      : mask_(mask), position_(position), rows_(rows), end_(end), tile_keys_(tile_keys) {}

  // Returns the first key of the first visible tile at or after key `begin`, or some number >= end
  // if there is none. *masked: whether the mask hides some (query, key) pair of that tile.
  __device__ int Next(int begin, bool* masked) {
    *masked = false;
    if (!mask_.any()) return begin;
    while (begin < end_) {
      if (begin >= window_end_ || begin < window_begin_) TestTiles(begin);
      const int left = static_cast<int>(visible_ >> ((begin - window_begin_) / tile_keys_));
      if (left != 0) {
        begin += (__ffs(left) - 1) * tile_keys_;
        *masked = partly_masked_ >> ((begin - window_begin_) / tile_keys_) & 1;
        return begin;
      }
      begin = window_end_;
    }
    return begin;
  }

 private:
  __device__ void TestTiles(int base) {
    window_begin_ = base;
    window_end_ = base + 32 * tile_keys_;
    const int begin = base + static_cast<int>(threadIdx.x) % 32 * tile_keys_;
    TileVisibility view = TileVisibility::kNone;
    if (begin < end_) view = mask_.View(begin, min(begin + tile_keys_, end_), position_, rows_);
    visible_ = __ballot_sync(0xffffffffu, view != TileVisibility::kNone);
    partly_masked_ = __ballot_sync(0xffffffffu, view == TileVisibility::kSome);
  }

  const SequenceMask mask_;
  const int position_, rows_, end_, tile_keys_;
  int window_begin_ = INT_MAX, window_end_ = INT_MIN;
  uint32_t visible_ = 0, partly_masked_ = 0;
};

// Order in which a work tile's K/V tiles are processed: first the tile at key `first`, then the
// others in ascending order. For ALiBi `first` is the tile with the first query's own key; later
// scores then hardly exceed the first row maximum. Under causality every consumer warpgroup sees
// the tile at `first` and all tiles of earlier keys; hence the tiles that a warpgroup does not see
// come last.
class TileOrder {
 public:
  __device__ TileOrder(const KeyRange& range, const VisibleTiles& tiles, int first, int tile_keys)
      : tiles_(tiles), begin_(range.begin), first_(first), tile_keys_(tile_keys) {}

  // Two functions: First returns the first tile to process, After the tile that follows `tile`. A
  // tile is given by its first key; a number >= range.end means that no tile is left. Both set
  // *masked: whether the mask hides some (query, key) pair of the returned tile.
  __device__ int First(bool* masked) {
    const int tile = tiles_.Next(first_, masked);
    return tile == first_ ? tile : After(first_, masked);
  }
  __device__ int After(int tile, bool* masked) {
    int next = tile == first_ ? begin_ : tile + tile_keys_;
    if (next < first_) {
      next = tiles_.Next(next, masked);
      if (next < first_) return next;
      next = first_;
    }
    if (next == first_) next += tile_keys_;
    return tiles_.Next(next, masked);
  }

 private:
  VisibleTiles tiles_;
  const int begin_, first_, tile_keys_;
};

// Copies 4 bytes from global to shared memory asynchronously.
__device__ inline void CopyAsync4(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(shared), "l"(global) : "memory");
}

__device__ inline const int32_t* Vector(const MaskColumns& columns, int vector) {
  return vector == kLowerBegin   ? columns.lower_begin
         : vector == kLowerEnd   ? columns.lower_end
         : vector == kUpperBegin ? columns.upper_begin
                                 : columns.upper_end;
}

// Fills those mask arrays (MaskVector) that are missing from the call's mask with their default
// values, in every pipeline stage. Done once, because later loads do not overwrite them. Called by
// all threads of the CTA.
template <typename S, typename Memory>
__device__ void FillMissingColumns(const AttentionCall& call, Memory& memory) {
  if (call.mask_tiles == nullptr) return;
  const MaskTile missing = MaskColumns().At(0);
#pragma unroll
  for (int vector = 0; vector < kMaskVectors; ++vector) {
    if (Vector(call.mask, vector) != nullptr) continue;
    const MaskRange& run = vector <= kLowerEnd ? missing.lower : missing.upper;
    const int value = vector % 2 == 0 ? run.begin_min : run.end_min;
    for (auto& columns : memory.columns) {
      for (int i = static_cast<int>(threadIdx.x); i < S::kKeys; i += S::kThreads) {
        columns[vector][i] = value;
      }
    }
  }
}

// The producer: loads Q, K and V of all work tiles of the CTA into the shared memory pipeline.
// Packed K and V: one warp issues TMA loads. Paged cache: kGatherWarps warps gather rows with
// cp.async. All lanes of these warps execute Run.
template <typename T, typename S, typename Memory, bool kCached>
class HopperProducer {
 public:
  __device__ HopperProducer(const AttentionCall& call, const HopperTensorMaps& maps, Memory& memory)
      : call_(call), maps_(maps), memory_(memory), barriers_(memory.barriers) {}

  __device__ void Run() {
    const AttentionTileScheduler<S> scheduler(call_, memory_.sequences);
    AttentionWorkTile work = scheduler.At(0);
    for (int turn = 1;; ++turn) {
      BarrierWait(SharedAddress(&barriers_.queries_empty[q_state_.stage]), q_state_.parity ^ 1);
      if (work.tile.sequence < 0) break;
      work = LoadWorkTile(work, scheduler, turn);
      q_state_.Advance();
    }
    if (IsLeader()) {
      memory_.queries[q_state_.stage].rows = 0;
      BarrierArrive(SharedAddress(&barriers_.queries_full[q_state_.stage]));
    }
  }

 private:
  __device__ static int Lane() { return static_cast<int>(threadIdx.x) % 32; }
  // Whether this thread is the one that issues the TMA loads and sends the messages to the
  // consumers.
  __device__ static bool IsLeader() { return threadIdx.x == 0; }

  // Loads one work tile. Returns the CTA's next work tile, scheduler.At(turn), which is looked up
  // while the first loads are in flight.
  __device__ AttentionWorkTile LoadWorkTile(const AttentionWorkTile& work,
                                            const AttentionTileScheduler<S>& scheduler, int turn) {
    const Sequence sequence(call_, work.tile.sequence);
    const HeadBias bias(call_.bias, call_.causal, work.head, call_.heads);
    const KeyRows rows(call_, work.tile.sequence);
    WorkTileInfo of;
    of.rows = min(S::kRows, sequence.q_len - work.tile.row);
    of.position = sequence.position + work.tile.row;
    of.kv_len = sequence.kv_len;
    of.head = work.head;
    of.sequence = work.tile.sequence;
    of.row = sequence.first_row + work.tile.row;
    of.hide_after = bias.hide_after();
    KeyRange range(bias, of.position, of.rows, of.kv_len, S::kKeys);
    if constexpr (S::kSkipsTiles) {
      if (of.position >= 0 && of.position + of.rows <= of.kv_len) {
        AlibiTileSkipper(call_, bias, of.head, of.position, of.rows, of.row, rows.first)
            .Narrow(&range, S::kKeys);
      }
    }
    const int diagonal = min(of.position, range.end - 1) / S::kKeys * S::kKeys;
    TileOrder tiles(
        range,
        VisibleTiles(SequenceMask(call_, of.sequence), of.position, of.rows, range.end, S::kKeys),
        Memory::kAlibi ? max(diagonal, range.begin) : range.begin, S::kKeys);
    KvTileInfo keys;
    keys.begin = tiles.First(&keys.masked);
    of.any_keys = keys.begin < range.end;
    if (IsLeader()) LoadQueries(of);
    AttentionWorkTile next{{}, -1};
    while (keys.begin < range.end) {
      bool masked;
      const int begin = tiles.After(keys.begin, &masked);
      keys.last = begin >= range.end;
      LoadKeys(keys, of, rows);
      LoadValues(keys.begin, of, rows);
      if (next.head < 0) next = scheduler.At(turn);
      kv_state_.Advance();
      keys.begin = begin;
      keys.masked = masked;
    }
    return next.head < 0 ? scheduler.At(turn) : next;
  }

  __device__ void LoadQueries(const WorkTileInfo& of) {
    memory_.queries[q_state_.stage] = of;
    const uint32_t full = SharedAddress(&barriers_.queries_full[q_state_.stage]);
    if (!of.any_keys) return BarrierArrive(full);
    auto& to = memory_.q[q_state_.stage];
    BarrierArriveExpectTx(full, sizeof(to));
    for (int half = 0; half < S::kDim / 64; ++half) {
      TmaLoad(SharedAddress(to[half]), maps_.q, half * 64, of.head, static_cast<int>(of.row), full);
    }
  }

  __device__ void LoadKeys(const KvTileInfo& keys, const WorkTileInfo& of, const KeyRows& rows) {
    BarrierWait(SharedAddress(&barriers_.keys_empty[kv_state_.stage]), kv_state_.parity ^ 1);
    const uint32_t full = SharedAddress(&barriers_.keys_full[kv_state_.stage]);
    auto& to = memory_.k[kv_state_.stage];
    if (IsLeader()) memory_.keys[kv_state_.stage] = keys;
    if constexpr (kCached) {
      const T* k = static_cast<const T*>(call_.k) + of.head * call_.k_head;
      GatherRows(to, k, call_.k_row, keys.begin, of.kv_len, rows, full);
    } else {
      if (call_.mask_tiles != nullptr) LoadMaskColumns(keys, of.kv_len, rows.first, full);
      if (IsLeader()) LoadTileTma(to, maps_.k, of.head, rows.first + keys.begin, full);
    }
    if constexpr (Memory::kFire) WriteStrip(keys, of, full);
  }

  // Warp 0 writes the FireStrip (logarithms of distances) of this K tile, for FIRE's bias.
  __device__ void WriteStrip(const KvTileInfo& keys, const WorkTileInfo& of, uint32_t full) const {
    if (threadIdx.x >= 32) return;
    WriteFireStrip(fabsf(call_.bias.fire_c), keys.begin - of.position - S::kRows,
                   memory_.fire.strips[kv_state_.stage]);
    BarrierArrive(full);
  }

  __device__ void LoadMaskColumns(const KvTileInfo& keys, int kv_len, int first_key,
                                  uint32_t full) const {
    if (keys.masked) {
#pragma unroll
      for (int vector = 0; vector < kMaskVectors; ++vector) {
        const int32_t* from = Vector(call_.mask, vector);
        if (from == nullptr) continue;
        auto& to = memory_.columns[kv_state_.stage][vector];
        for (int i = Lane(); i < S::kKeys; i += 32) {
          CopyAsync4(SharedAddress(&to[i]), from + first_key + min(keys.begin + i, kv_len - 1));
        }
      }
    }
    BarrierArriveAfterCpAsync(full);
  }

  // Loads a V tile. Rows past the sequence's end are zeroed: their probabilities are 0, but such a
  // row may belong to another sequence and contain inf, and 0 * inf would be NaN.
  __device__ void LoadValues(int begin, const WorkTileInfo& of, const KeyRows& rows) {
    BarrierWait(SharedAddress(&barriers_.values_empty[kv_state_.stage]), kv_state_.parity ^ 1);
    const uint32_t full = SharedAddress(&barriers_.values_full[kv_state_.stage]);
    auto& to = memory_.v[kv_state_.stage];
    if constexpr (kCached) {
      const T* v = static_cast<const T*>(call_.v) + of.head * call_.v_head;
      GatherRows(to, v, call_.v_row, begin, of.kv_len, rows, full);
    } else {
      const int count = of.kv_len - begin;
      const uint32_t tail = SharedAddress(&barriers_.values_tail);
      const uint32_t barrier = count < S::kKeys ? tail : full;
      if (IsLeader()) LoadTileTma(to, maps_.v, of.head, rows.first + begin, barrier);
      if (count >= S::kKeys) return;
      BarrierWait(tail, tail_parity_);
      tail_parity_ ^= 1;
      ZeroRowsFrom(to, count);
      if (IsLeader()) BarrierArrive(full);
    }
  }

  using Tile = T[S::kDim / 64][S::kKeys * 64];

  __device__ static void LoadTileTma(Tile& to, const CUtensorMap& map, int head, int row,
                                     uint32_t full) {
    BarrierArriveExpectTx(full, sizeof(to));
    for (int half = 0; half < S::kDim / 64; ++half) {
      TmaLoad(SharedAddress(to[half]), map, half * 64, head, row, full);
    }
  }

  __device__ static void ZeroRowsFrom(Tile& tile, int count) {
    for (auto& half : tile) {
      // Each lane always zeroes the same addresses, so that compute-sanitizer's racecheck sees that
      // the stores to an address are ordered.
      for (int i = count * 8 / 32 * 32 + Lane(); i < S::kKeys * 8; i += 32) {
        if (i >= count * 8) reinterpret_cast<uint4*>(half)[i] = {0, 0, 0, 0};
      }
    }
    FenceViewAsyncShared();
    __syncwarp();
  }

  // Starts asynchronous copies (cp.async) of the K rows, or of the V rows, of keys [begin, begin +
  // kKeys) of one head from the paged cache to `to`. rows.Row(key) is the number of a key's row in
  // the cache; row n of this head starts at base + n * stride. For keys from `kv_len` on, zeros are
  // written instead. When the copies have finished, they arrive at mbarrier `full`.
  __device__ void GatherRows(Tile& to, const T* base, int64_t stride, int begin, int kv_len,
                             const KeyRows& rows, uint32_t full) const {
    constexpr int kPieces = S::kDim / 8;  // 16-byte pieces per row
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int thread = (warp == 0 ? 0 : warp - 1) * 32 + Lane(), piece = thread % kPieces;
    const bool inside = piece * 8 < call_.head_dim;
#pragma unroll 4
    for (int r = thread / kPieces; r < S::kKeys; r += kGatherWarps * 32 / kPieces) {
      const int key = min(begin + r, kv_len - 1);
      const T* from = base + rows.Row(key) * stride + (inside ? piece * 8 : 0);
      CpAsync16(SharedAddress(to[piece / 8] + r * 64 + (piece % 8 ^ (r & 7)) * 8), from,
                inside && begin + r < kv_len);
    }
    BarrierArriveAfterCpAsync(full);
    if (IsLeader()) BarrierArrive(full);
  }

  const AttentionCall& call_;
  const HopperTensorMaps& maps_;
  Memory& memory_;
  HopperBarriers<S::kStages>& barriers_;
  PipelineState<2> q_state_;
  PipelineState<S::kStages> kv_state_;
  uint32_t tail_parity_ = 0;
};

// Writes AlibiOperands::slopes of one head. `before`, `after`: ALiBi's slopes left and right of the
// diagonal, divided by the softmax scale. Executed by one warp.
template <typename T>
__device__ void WriteSlopes(float before, float after, T (&to)[kTileSides][2 * 64]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int side = 0; side < kTileSides; ++side) {
    float left = side == kBefore ? before : side == kAfter ? -after : 0.0f;
    T pieces[3];
#pragma unroll
    for (T& piece : pieces) {
      piece = static_cast<T>(left);
      left -= static_cast<float>(piece);
    }
#pragma unroll
    for (int i = lane; i < 2 * 64; i += 32) {
      const int column = i % 8;
      to[side][i] = i >= 64 || column > 2 ? static_cast<T>(0.0f)
                    : column == 0         ? pieces[0]
                    : column == 1         ? pieces[1]
                                          : pieces[2];
    }
  }
  FenceViewAsyncShared();
}

// Writes a head's bias at distances (key position minus query position) [-reach, reach] in two
// copies, the second shifted by one entry; hence every pair of neighbours is 8-byte aligned in one
// of them. Executed by one warp. The second overload is for lazy rescaling; it multiplies the bias
// (log2 units) by `unit`, 1 / (softmax scale * log2 e).
template <int kCount>
__device__ void WriteTable(const HeadBias& bias, int reach, HeadBiasTable<kCount, false>& table) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 8
  for (int i = lane; i <= 2 * reach; i += 32) {
    const float value = bias.At(i - reach);
    table.values[0][i] = value;
    if (i > 0) table.values[1][i - 1] = value;
  }
  if (lane == 0) {
    table.before = bias.At(-reach);
    table.after = bias.At(reach);
  }
}
template <int kCount>
__device__ void WriteTable(const HeadBias& bias, int reach, float unit,
                           HeadBiasTable<kCount, true>& table) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto base = [](float value) { return value == -INFINITY ? 0.0f : value; };
  const bool far = bias.table();
  const float before = far ? base(bias.At(-reach)) : 0.0f,
              after = far ? base(bias.At(reach)) : 0.0f;
#pragma unroll 8
  for (int i = lane; i <= 2 * reach; i += 32) {
    const float value = bias.At(i - reach);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const float less = (value - (side == 0 ? before : after)) * unit;
      table.values[side][0][i] = less;
      if (i > 0) table.values[side][1][i - 1] = less;
    }
  }
  if (lane == 0) {
    table.before = before;
    table.after = after;
  }
}

// Writes the bias tables of all work tiles of the CTA, one work tile ahead of the consumers.
// Executed by one warp.
template <typename T, typename S, typename Memory>
__device__ void WriteTables(const AttentionCall& call, Memory& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int reach = S::Reach(call.bias.saturation);
  const bool any = call.bias.kind != BiasKind::kNone || call.causal;
  HopperBarriers<S::kStages>& barriers = memory.barriers;
  const AttentionTileScheduler<S> scheduler(call, memory.sequences);
  PipelineState<2> state;
  for (int turn = 0;; ++turn) {
    const AttentionWorkTile work = scheduler.At(turn);
    BarrierWait(SharedAddress(&barriers.queries_empty[state.stage]), state.parity ^ 1);
    if (any && work.tile.sequence >= 0) {
      const HeadBias bias(call.bias, call.causal, work.head, call.heads);
      auto& table = memory.tables[state.stage];
      const float unit = 1.0f / (call.scale * kLog2E);
      if constexpr (Memory::kFire) WriteFireTable(bias, unit, memory.fire.tables[state.stage]);
      if constexpr (S::kLazyRescale) {
        WriteTable(bias, reach, unit, table);
        if constexpr (Memory::kAlibi) {
          const auto slope = [](float next) { return next == -INFINITY ? 0.0f : -next; };
          const float before = slope(bias.At(-1)), after = slope(bias.At(1));
          WriteSlopes<T>(before * unit, after * unit, memory.alibi.slopes[state.stage]);
          if (lane == 0) {
            table.before = before;
            table.after = after;
          }
        }
      } else {
        WriteTable(bias, reach, table);
      }
    }
    __syncwarp();
    // It would suffice that one lane arrives at this mbarrier, but then compute-sanitizer's
    // racecheck would not see the order of the other lanes' stores.
    BarrierArrive(SharedAddress(&barriers.queries_full[state.stage]));
    if (work.tile.sequence < 0) return;
    state.Advance();
  }
}

}  // namespace quintet::cuda
