// CPU attention without its SIMD code: tasks, scratch memory, and the addresses of keys and values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention/bias.h"
#include "kernels/attention/mask.h"
#include "kernels/base/carver.h"

namespace quintet::cpu {

constexpr int64_t kQueryBlock = 128;  // largest number of queries per task
constexpr int64_t kFewRows = 8;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kKeyTile = 64;  // tiles start at multiples of this from the sequence's first key

// head_dim rounded up to a multiple of 16: the row stride in scratch, in floats. It is a multiple
// of the lane count of every instruction set's vectors.
inline int64_t PaddedDim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Scratch memory of one thread. Array sizes are in floats; D = PaddedDim(head_dim). The wide layout
// and the few-rows layout are described in attention/tile-inl.h.
struct AttentionScratch {
  // [kQueryBlock * D] Wide layout (SIMD lanes are queries): the queries, as [groups][D][kGroup].
  // Few-rows layout (lanes are keys): instead one tile's rows of K, consecutive.
  float* q_t;
  // [kQueryBlock * D] The unnormalised output. Wide layout (SIMD lanes are queries): as
  // [groups][D][kGroup]. Few-rows layout (lanes are keys): one row of D floats per query.
  float* o_t;
  // [kKeyTile * D] If SIMD lanes are queries (wide layout): a tile's rows of K, consecutive. If
  // lanes are keys (few-rows layout): the tile's keys, channel-major.
  float* k;
  // [kKeyTile * D] one tile's rows of V, copied to consecutive rows.
  float* v;
  // [kKeyTile * 32] attention scores of one tile of keys and up to 32 queries; the softmax
  // overwrites them with the probabilities P.
  float* p;
  // [kQueryBlock] running row maxima.
  float* row_max;
  // [kQueryBlock] running row sums.
  float* row_sum;
  // [kQueryBlock] FireLength (attention/bias.h) of each query; only for FIRE.
  float* fire;

  // Points the members to consecutive pieces of the memory at `base` and returns the total size of
  // the arrays in bytes. With a null `base` it only computes the size.
  int64_t Carve(void* base, int64_t head_dim) {
    const int64_t d = PaddedDim(head_dim);
    Carver carver(base);
    const auto take = [&](int64_t n) { return static_cast<float*>(carver.Take(n * 4)); };
    q_t = take(kQueryBlock * d);
    o_t = take(kQueryBlock * d);
    k = take(kKeyTile * d);
    v = take(kKeyTile * d);
    p = take(kKeyTile * 32);
    row_max = take(kQueryBlock);
    row_sum = take(kQueryBlock);
    fire = take(kQueryBlock);
    return carver.used_bytes();
  }
};

// The work that one thread does in one task: some heads of one sequence, for a block of its
// queries.
struct AttentionTask {
  const AttentionArgs* args;
  int64_t sequence;
  int64_t head, heads_end;  // current head; end of the task's heads
  int64_t first_row, rows;  // rows of args.q
  int64_t position;         // position of the first row's query
  int64_t kv_len;
  int64_t global_keys = 0;  // of the sequence (AttentionArgs::globals)
};

// Addresses of the keys and values [begin, begin + count) of a task's head, either of the
// sequence's own keys or of its global keys.
struct KeyRows {
  const float* k[kKeyTile];
  const float* v[kKeyTile];

  void Point(const AttentionTask& task, bool global, int64_t begin, int64_t count) {
    const AttentionArgs& args = *task.args;
    if (count == 0) return;
    const size_t s = static_cast<size_t>(task.sequence);
    if (global) {
      PointToRows(args.globals->k, args.globals->v, task.head, args.globals->offsets[s] + begin,
                  count);
    } else if (args.cache != nullptr) {
      PointIntoCache(task, begin, count);
    } else {
      PointToRows(args.k, args.v, task.head, args.kv_offsets[s] + begin, count);
    }
  }

 private:
  void PointToRows(const Tensor& keys, const Tensor& values, int64_t head, int64_t row,
                   int64_t count) {
    const float* key = keys.as<float>() + row * keys.stride[0] + head * keys.stride[1];
    const float* value = values.as<float>() + row * values.stride[0] + head * values.stride[1];
    for (int64_t j = 0; j < count; ++j) {
      k[j] = key + j * keys.stride[0];
      v[j] = value + j * values.stride[0];
    }
  }

  // Computes the addresses of keys and values in the paged cache. Most keys are in the slot after
  // the previous key's slot, on the same page. The address of such a key follows from the previous
  // address without a division.
  void PointIntoCache(const AttentionTask& task, int64_t begin, int64_t count) {
    const KvCache& cache = *task.args->cache;
    const int32_t* slots = task.args->slots + task.sequence * task.args->slots_stride + begin;
    const float* keys = cache.as<float>() + cache.ChunkOffset(task.args->layer, false, task.head);
    const int64_t to_values = cache.heads * cache.page_size * cache.head_dim;
    int64_t expected = -1, left_in_page = 0, offset = 0;
    for (int64_t j = 0; j < count; ++j) {
      if (slots[j] == expected && left_in_page > 0) {
        offset += cache.head_dim;
        --left_in_page;
      } else {
        offset = cache.SlotOffset(slots[j]);
        left_in_page = cache.page_size - 1 - slots[j] % cache.page_size;
      }
      expected = slots[j] + int64_t{1};
      k[j] = keys + offset;
      v[j] = k[j] + to_values;
    }
  }
};

// Keys [begin, end) that some query of a task can see, given causality, asymmetric ALiBi (which
// hides the keys on one side of a query) and ColumnMask::reach. begin is a multiple of kKeyTile.
struct KeyRange {
  int64_t begin = 0, end = 0;
  KeyRange() = default;
  KeyRange(const AttentionTask& task, const DistanceBias& bias) : end(task.kv_len) {
    if (bias.hide_after()) end = std::min(end, task.position + task.rows);
    if (bias.hide_before()) begin = std::max<int64_t>(0, task.position) / kKeyTile * kKeyTile;
    const ColumnMask* mask = task.args->mask;
    if (mask == nullptr || mask->reach == 0) return;
    const int64_t first = std::max<int64_t>(0, task.position - mask->reach) / kKeyTile * kKeyTile;
    begin = std::max(begin, first);
    end = std::min(end, task.position + task.rows + mask->reach);
  }
};

// The mask (mask.h) of a task's sequence: for each key, ranges of queries that do not see it.
// Without a mask, everything is visible.
class TaskMask {
 public:
  explicit TaskMask(const AttentionTask& task) : position_(static_cast<int>(task.position)) {
    if (task.args->mask == nullptr) return;
    const int64_t first_key = task.args->kv_offsets[static_cast<size_t>(task.sequence)];
    columns_ = task.args->mask->columns();
    first_key_ = first_key;
    tiles_ = task.args->mask->tiles.data() + FirstMaskTile(first_key, task.sequence);
  }

  // Whether the mask alone, regardless of causality and bias, lets query rows [first, first +
  // count) of the task see all, some or none of the keys [begin, begin + kKeyTile).
  TileVisibility View(int64_t begin, int64_t first, int64_t count) const {
    if (tiles_ == nullptr) return TileVisibility::kAll;
    const int row = position_ + static_cast<int>(first);
    return tiles_[begin / kMaskTileKeys].View(row, row + static_cast<int>(count));
  }
  MaskTile Column(int64_t key) const { return columns_.At(first_key_ + key); }
  int Position(int64_t row) const { return position_ + static_cast<int>(row); }

 private:
  const int position_;  // position of the task's first query
  MaskColumns columns_;
  int64_t first_key_ = 0;
  const MaskTile* tiles_ = nullptr;
};
static_assert(kKeyTile == kMaskTileKeys);

inline float* OutRow(const AttentionTask& task, int64_t i) {
  const Tensor& out = task.args->out;
  return out.as<float>() + (task.first_row + i) * out.stride[0] + task.head * out.stride[1];
}
inline const float* QueryRow(const AttentionTask& task, int64_t i) {
  const Tensor& q = task.args->q;
  return q.as<float>() + (task.first_row + i) * q.stride[0] + task.head * q.stride[1];
}

inline bool HasFire(const AttentionArgs& args) {
  return args.bias != nullptr && args.bias->kind == BiasKind::kFire;
}

// Iterates over the key tiles of all heads of a task: for each head those of the sequence's own
// keys, then those of its global keys. A head whose queries see no own key has one empty tile of
// these.
struct TileIterator {
  explicit TileIterator(const AttentionTask& of) : task(of) { BeginHead(); }

  bool done() const { return task.head == task.heads_end; }
  bool first() const { return !global && begin == range.begin; }
  bool last() const { return EndsRange() && (global || task.global_keys == 0); }
  int64_t keys() const { return std::clamp<int64_t>(range.end - begin, 0, kKeyTile); }
  DistanceBias bias() const { return {task.args->bias, task.args->causal, task.head}; }
  void Next() {
    if (!EndsRange()) {
      begin += kKeyTile;
    } else if (!last()) {
      global = true;
      range.begin = begin = 0;
      range.end = task.global_keys;
    } else if (++task.head < task.heads_end) {
      BeginHead();
    }
  }

  AttentionTask task;
  bool global = false;  // the tile is one of the global keys
  KeyRange range;
  int64_t begin;

 private:
  bool EndsRange() const { return begin + kKeyTile >= range.end; }
  void BeginHead() {
    global = false;
    range = KeyRange(task, bias());
    begin = range.begin;
  }
};

struct KeyTile {
  KeyRows rows;
  int64_t begin, count;

  void Point(const TileIterator& iterator) {
    begin = iterator.begin;
    count = iterator.keys();
    rows.Point(iterator.task, iterator.global, begin, count);
  }

  // Prefetches key and value row j into the L2 cache; no-op if j >= count.
  void Prefetch(int64_t j, int64_t head_dim) const {
    constexpr int64_t kLineFloats = 16;
    for (int64_t c = 0; j < count && c < head_dim; c += kLineFloats) {
      __builtin_prefetch(rows.k[j] + c, 0, 2);
      __builtin_prefetch(rows.v[j] + c, 0, 2);
    }
  }
};

}  // namespace quintet::cpu
