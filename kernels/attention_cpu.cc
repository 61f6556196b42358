// Attention on the CPU. A task is one head of one sequence and a block of its queries; it walks the
// keys in tiles of kKeyTile. Blocks of more than kFewRows queries use the wide layout (lanes are
// queries: FMA bound), others the few-rows layout (lanes are keys, then channels: bound by reading
// keys and values once). Both give the same bits; see attention_tile-inl.h.
#include <algorithm>
#include <cstring>

#include "kernels/attention_bias.h"
#include "kernels/buffer.h"
#include "kernels/cpu_ops.h"

#ifndef QUINTET_KERNELS_ATTENTION_CPU_TYPES_
#define QUINTET_KERNELS_ATTENTION_CPU_TYPES_
namespace quintet::cpu {

constexpr int64_t kQueryBlock = 128;  // most queries of one task
constexpr int64_t kFewRows = 8;
constexpr int64_t kMaxHeadDim = 256;

// One thread's working memory; sizes in floats, D = head_dim rounded up to 16.
struct AttentionScratch {
  float* q_t;      // [kQueryBlock * D] wide: queries by groups, channels first. few: gathered keys
  float* o_t;      // [kQueryBlock * D] sums, laid out like the queries
  float* k;        // [64 * D] wide: gathered keys. few: keys, channels first
  float* v;        // [64 * D] gathered values
  float* p;        // [64 * 32] scores, then weights
  float* row_max;  // [kQueryBlock]
  float* row_sum;  // [kQueryBlock]
  float* fire;     // [kQueryBlock] FIRE's length term of each query

  // Carves from `base` (null: counts only) and returns the bytes.
  int64_t Carve(void* base, int64_t head_dim) {
    const int64_t d = PaddedDim(head_dim);
    Carver carver(base);
    const auto take = [&](int64_t n) { return static_cast<float*>(carver.Take(n * 4)); };
    q_t = take(kQueryBlock * d);
    o_t = take(kQueryBlock * d);
    k = take(64 * d);
    v = take(64 * d);
    p = take(64 * 32);
    row_max = take(kQueryBlock);
    row_sum = take(kQueryBlock);
    fire = take(kQueryBlock);
    return carver.used_bytes();
  }
  static int64_t PaddedDim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
};

// One head of one sequence and a block of its queries.
struct AttentionTask {
  const AttentionArgs* args;
  int64_t sequence, head;
  int64_t first_row, rows;  // in args.q
  int64_t position;         // of first_row
  int64_t kv_len;
};

}  // namespace quintet::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "kernels/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

// Where the keys and values [begin, begin + count) of a task's head are.
struct KeyRows {
  const float* k[kKeyTile];
  const float* v[kKeyTile];

  void Point(const AttentionTask& task, int64_t begin, int64_t count) {
    const AttentionArgs& args = *task.args;
    if (args.cache != nullptr) return PointIntoCache(task, begin, count);
    const int64_t row = args.kv_offsets[static_cast<size_t>(task.sequence)] + begin;
    const float* key = args.k.as<float>() + row * args.k.stride[0] + task.head * args.k.stride[1];
    const float* value = args.v.as<float>() + row * args.v.stride[0] + task.head * args.v.stride[1];
    for (int64_t j = 0; j < count; ++j) {
      k[j] = key + j * args.k.stride[0];
      v[j] = value + j * args.v.stride[0];
    }
  }

 private:
  // Slots mostly follow one another within a page: then the next address needs no division.
  void PointIntoCache(const AttentionTask& task, int64_t begin, int64_t count) {
    const KvCache& cache = *task.args->cache;
    const int32_t* slots = task.args->slots + task.sequence * task.args->slots_stride + begin;
    const float* keys = cache.data + cache.ChunkOffset(task.args->layer, false, task.head);
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

// The keys that some query of a task can see: [begin, end), begin a multiple of kKeyTile.
struct KeyRange {
  int64_t begin = 0, end;
  KeyRange(const AttentionTask& task, const DistanceBias& bias) : end(task.kv_len) {
    if (bias.hide_after()) end = std::min(end, task.position + task.rows);
    if (bias.hide_before()) begin = std::max<int64_t>(0, task.position) / kKeyTile * kKeyTile;
  }
};

float* OutRow(const AttentionTask& task, int64_t i) {
  const Tensor& out = task.args->out;
  return out.as<float>() + (task.first_row + i) * out.stride[0] + task.head * out.stride[1];
}
const float* QueryRow(const AttentionTask& task, int64_t i) {
  const Tensor& q = task.args->q;
  return q.as<float>() + (task.first_row + i) * q.stride[0] + task.head * q.stride[1];
}

bool HasFire(const AttentionArgs& args) {
  return args.bias != nullptr && args.bias->kind == BiasKind::kFire;
}

// One group of queries (at most kGroup) against one tile of keys, wide layout.
struct WideTile {
  const AttentionTask* task;
  const DistanceBias* bias;
  const AttentionScratch* scratch;
  int64_t first, rows;  // of the group, within the task
  int64_t begin, keys;  // of the tile
};

// p += FIRE's bias. strip: FIRE's distance term on the tile's diagonals, as in ScoreKeys.
template <int kVectors>
void AddFireWide(const WideTile& t) {
  const F32 d;
  const PositionBias& bias = *t.task->args->bias;
  const int64_t first_distance = t.begin - (t.task->position + t.first) + kKeyTile - 1;
  HWY_ALIGN float strip[kKeyTile + kGroup];
  for (int64_t i = 0; i < kKeyTile - 1 + kGroup; ++i) {
    strip[i] = FireDistance(bias, first_distance - i);
  }
  const float* length = t.scratch->fire + t.first;
  const auto [num_min, num_max] = std::minmax_element(strip, strip + kKeyTile - 1 + kGroup);
  const auto [len_min, len_max] = std::minmax_element(length, length + kVectors * kN);
  const FireSegments segments(bias, t.task->head,
                              std::min(*num_min / *len_min, *num_min / *len_max),
                              std::max(*num_max / *len_min, *num_max / *len_max));
  for (int64_t j = 0; j < t.keys; ++j) {
    for (int u = 0; u < kVectors; ++u) {
      const auto distance = hn::LoadU(d, strip + (kKeyTile - 1 - j) + u * kN);
      const auto f = hn::Div(distance, hn::LoadU(d, length + u * kN));
      float* score = t.scratch->p + j * kGroup + u * kN;
      hn::StoreU(hn::Add(hn::LoadU(d, score), segments.Bias(f)), d, score);
    }
  }
}

template <int kVectors>
void AttendTileWide(const WideTile& t) {
  const AttentionScratch& s = *t.scratch;
  const int64_t head_dim = t.task->args->q.dim[2];
  const int64_t stride = AttentionScratch::PaddedDim(head_dim);
  const int64_t position = t.task->position + t.first;
  HWY_ALIGN float strip[kKeyTile + kGroup];
  t.bias->FillStrip(t.begin - position + kKeyTile - 1, -1, kKeyTile - 1 + kGroup, strip);
  const float* q_t = s.q_t + t.first * head_dim;
  float* o_t = s.o_t + t.first * head_dim;
  ScoreTile<kVectors>(q_t, s.k, stride, head_dim, t.task->args->scale, strip, t.keys, s.p);
  if (HasFire(*t.task->args)) AddFireWide<kVectors>(t);
  V32 correction[kVectors];
  SoftmaxTile<kVectors>(t.keys, s.p, s.row_max + t.first, s.row_sum + t.first, correction);
  AddValueTile<kVectors>(s.p, s.v, stride, t.keys, correction, head_dim, o_t);
}

// Queries into scratch, channels first; sums and statistics to their beginnings.
void BeginWide(const AttentionTask& task, const AttentionScratch& s) {
  const int64_t head_dim = task.args->q.dim[2];
  for (int64_t first = 0; first < task.rows; first += kGroup) {
    const int64_t rows = std::min(kGroup, task.rows - first);
    const float* from[kGroup];
    for (int64_t i = 0; i < rows; ++i) from[i] = QueryRow(task, first + i);
    Transpose(from, rows, head_dim, s.q_t + first * head_dim, kGroup);
    std::fill_n(s.o_t + first * head_dim, kGroup * head_dim, 0.0f);
    std::fill_n(s.row_max + first, kGroup, kMinusInf);
    std::fill_n(s.row_sum + first, kGroup, 0.0f);
    for (int64_t i = 0; HasFire(*task.args) && i < kGroup; ++i) {
      s.fire[first + i] =
          FireLength(*task.args->bias, task.position + first + std::min(i, rows - 1));
    }
  }
}

// out = sums / row_sum, zeros where no key was seen.
void EndWide(const AttentionTask& task, const AttentionScratch& s) {
  const F32 d;
  const int64_t head_dim = task.args->q.dim[2];
  for (int64_t first = 0; first < task.rows; first += kGroup) {
    const int64_t rows = std::min(kGroup, task.rows - first);
    float* o_t = s.o_t + first * head_dim;
    const float* channel[kMaxHeadDim];
    for (int64_t c = 0; c < head_dim; ++c) {
      channel[c] = o_t + c * kGroup;
      for (int64_t i = 0; i < kGroup; i += kN) {
        const auto sum = hn::LoadU(d, s.row_sum + first + i);
        const auto o = hn::Div(hn::LoadU(d, channel[c] + i), sum);
        hn::StoreU(hn::IfThenZeroElse(hn::Eq(sum, hn::Zero(d)), o), d, o_t + c * kGroup + i);
      }
    }
    if (head_dim % kN == 0) {
      Transpose(channel, head_dim, rows, OutRow(task, first), task.args->out.stride[0]);
      continue;
    }
    for (int64_t i = 0; i < rows; ++i) {
      float* out = OutRow(task, first + i);
      for (int64_t c = 0; c < head_dim; ++c) out[c] = channel[c][i];
    }
  }
}

void AttendWide(const AttentionTask& task, const AttentionScratch& s) {
  const int64_t head_dim = task.args->q.dim[2];
  const int64_t stride = AttentionScratch::PaddedDim(head_dim);
  const DistanceBias bias(task.args->bias, task.args->causal, task.head);
  const KeyRange range(task, bias);
  BeginWide(task, s);
  for (int64_t begin = range.begin; begin < range.end; begin += kKeyTile) {
    const int64_t keys = std::min(kKeyTile, range.end - begin);
    KeyRows from;
    from.Point(task, begin, keys);
    GatherRows(from.k, keys, head_dim, s.k, stride);
    GatherRows(from.v, keys, head_dim, s.v, stride);
    for (int64_t first = 0; first < task.rows; first += kGroup) {
      const int64_t rows = std::min(kGroup, task.rows - first);
      const int64_t position = task.position + first;
      if (bias.Hidden(begin - (position + rows - 1), begin + keys - 1 - position)) continue;
      const WideTile tile{&task, &bias, &s, first, rows, begin, keys};
      rows > kN ? AttendTileWide<2>(tile) : AttendTileWide<1>(tile);
    }
  }
  EndWide(task, s);
}

// ---- Few rows ----

// Biases of row `i` against the tile's keys; keys that do not exist, up to a whole vector, are
// hidden.
void FillBiasFew(const AttentionTask& task, const DistanceBias& bias, int64_t i, int64_t begin,
                 int64_t keys, float* s) {
  bias.FillStrip(begin - (task.position + i), 1, keys, s);
  for (int64_t j = keys; j % kN != 0; ++j) s[j] = kMinusInf;
}

void AddFireFew(const AttentionTask& task, int64_t i, int64_t begin, int64_t keys, float* s) {
  const F32 d;
  const PositionBias& bias = *task.args->bias;
  HWY_ALIGN float f[kKeyTile] = {};
  const float length = FireLength(bias, task.position + i);
  for (int64_t j = 0; j < keys; ++j) {
    f[j] = FireDistance(bias, begin + j - (task.position + i)) / length;
  }
  const auto [f_min, f_max] = std::minmax_element(f, f + keys);
  const FireSegments segments(bias, task.head, *f_min, *f_max);
  for (int64_t j = 0; j < keys; j += kN) {
    const auto added = segments.Bias(hn::LoadU(d, f + j));
    hn::StoreU(hn::Add(hn::LoadU(d, s + j), added), d, s + j);
  }
}

template <int kRows>
void ScoreRowsFew(const float* const* q, const float* k_t, int64_t head_dim, float scale,
                  int64_t keys, float* s) {
  int64_t j = 0;
  for (; j + 3 * kN < keys; j += 4 * kN) ScoreFew<kRows, 4>(q, k_t + j, head_dim, scale, s + j);
  for (; j < keys; j += kN) ScoreFew<kRows, 1>(q, k_t + j, head_dim, scale, s + j);
}

template <int kRows>
void AddValueRowsFew(const float* s, const float* const* v, int64_t keys, const float* correction,
                     float* o, int64_t stride, int64_t padded_dim) {
  int64_t c = 0;
  for (; c + 4 * kN <= padded_dim; c += 4 * kN) {
    AddValuesFew<kRows, 4>(s, v, keys, correction, c, o, stride);
  }
  for (; c < padded_dim; c += kN) AddValuesFew<kRows, 1>(s, v, keys, correction, c, o, stride);
}

// One tile of keys against all rows. rows.v must hold whole vectors.
void AttendTileFew(const AttentionTask& task, const AttentionScratch& scratch,
                   const DistanceBias& bias, const KeyRows& rows, int64_t begin, int64_t keys) {
  constexpr int64_t kTogether =
      HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // rows x 4 vectors of sums in registers
  const int64_t head_dim = task.args->q.dim[2];
  const int64_t stride = AttentionScratch::PaddedDim(head_dim);
  const int64_t padded_dim = (head_dim + kN - 1) / kN * kN;
  const float* q[kFewRows];
  float correction[kFewRows];
  float* s = scratch.p;
  for (int64_t i = 0; i < task.rows; ++i) {
    q[i] = QueryRow(task, i);
    FillBiasFew(task, bias, i, begin, keys, s + i * kKeyTile);
  }
  const float scale = task.args->scale;
  int64_t i = 0;
  for (; i + kTogether <= task.rows; i += kTogether) {
    ScoreRowsFew<kTogether>(q + i, scratch.k, head_dim, scale, keys, s + i * kKeyTile);
  }
  for (; i < task.rows; ++i) {
    ScoreRowsFew<1>(q + i, scratch.k, head_dim, scale, keys, s + i * kKeyTile);
  }
  for (i = 0; i < task.rows; ++i) {
    if (HasFire(*task.args)) AddFireFew(task, i, begin, keys, s + i * kKeyTile);
    SoftmaxRow(keys, s + i * kKeyTile, scratch.row_max + i, scratch.row_sum + i, correction + i);
  }
  for (i = 0; i + kTogether <= task.rows; i += kTogether) {
    AddValueRowsFew<kTogether>(s + i * kKeyTile, rows.v, keys, correction + i,
                               scratch.o_t + i * stride, stride, padded_dim);
  }
  for (; i < task.rows; ++i) {
    AddValueRowsFew<1>(s + i * kKeyTile, rows.v, keys, correction + i, scratch.o_t + i * stride,
                       stride, padded_dim);
  }
}

void EndFew(const AttentionTask& task, const AttentionScratch& s) {
  const int64_t head_dim = task.args->q.dim[2];
  for (int64_t i = 0; i < task.rows; ++i) {
    const float* o = s.o_t + i * AttentionScratch::PaddedDim(head_dim);
    float* out = OutRow(task, i);
    for (int64_t c = 0; c < head_dim; ++c)
      out[c] = s.row_sum[i] == 0.0f ? 0.0f : o[c] / s.row_sum[i];
  }
}

void AttendFew(const AttentionTask& task, const AttentionScratch& s) {
  const int64_t head_dim = task.args->q.dim[2];
  const int64_t stride = AttentionScratch::PaddedDim(head_dim);
  const DistanceBias bias(task.args->bias, task.args->causal, task.head);
  const KeyRange range(task, bias);
  std::fill_n(s.o_t, task.rows * stride, 0.0f);
  std::fill_n(s.row_max, task.rows, kMinusInf);
  std::fill_n(s.row_sum, task.rows, 0.0f);
  for (int64_t begin = range.begin; begin < range.end; begin += kKeyTile) {
    const int64_t keys = std::min(kKeyTile, range.end - begin);
    KeyRows rows;
    rows.Point(task, begin, keys);
    Transpose(rows.k, keys, head_dim, s.k, kKeyTile);
    if (head_dim % kN != 0) {
      GatherRows(rows.v, keys, head_dim, s.v, stride);
      for (int64_t j = 0; j < keys; ++j) rows.v[j] = s.v + j * stride;
    }
    AttendTileFew(task, s, bias, rows, begin, keys);
  }
  EndFew(task, s);
}

void AttendTask(const AttentionTask& task, const AttentionScratch& scratch) {
  task.rows <= kFewRows ? AttendFew(task, scratch) : AttendWide(task, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet::cpu {
namespace {

HWY_EXPORT(AttendTask);

int64_t KvLen(const AttentionArgs& args, int64_t sequence) {
  const size_t s = static_cast<size_t>(sequence);
  return args.cache != nullptr ? args.kv_lens[s] : args.kv_offsets[s + 1] - args.kv_offsets[s];
}

// Numbers the blocks of all sequences without a table: sequence s owns the numbers from First(s),
// which are at least as many as it has blocks; the numbers left over are empty.
class BlockNumbers {
 public:
  BlockNumbers(const AttentionArgs& args, int64_t block_rows)
      : offsets_(args.q_offsets), block_rows_(block_rows) {}

  int64_t total() const { return First(static_cast<int64_t>(offsets_.size()) - 1); }

  // The sequence of a number, and the rows [*begin, *end) within it; empty when begin >= end.
  int64_t Find(int64_t number, int64_t* begin, int64_t* end) const {
    int64_t low = 0,
            high = static_cast<int64_t>(offsets_.size()) - 1;  // First(low) <= number < First(high)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (First(middle) <= number ? low : high) = middle;
    }
    *begin = (number - First(low)) * block_rows_;
    *end = std::min<int64_t>(*begin + block_rows_, Offset(low + 1) - Offset(low));
    return low;
  }

 private:
  int64_t Offset(int64_t s) const { return offsets_[static_cast<size_t>(s)]; }
  int64_t First(int64_t s) const { return (Offset(s) - Offset(0)) / block_rows_ + s; }

  absl::Span<const int32_t> offsets_;
  int64_t block_rows_;
};

// Multiply-adds of the whole call.
int64_t Work(const AttentionArgs& args) {
  int64_t pairs = 0;
  for (size_t s = 0; s + 1 < args.q_offsets.size(); ++s) {
    pairs +=
        int64_t{args.q_offsets[s + 1] - args.q_offsets[s]} * KvLen(args, static_cast<int64_t>(s));
  }
  return 2 * pairs * args.q.dim[1] * args.q.dim[2];
}

int64_t BlockRows(const AttentionArgs& args, int threads) {
  int64_t rows = kQueryBlock;
  while (rows > 32 && BlockNumbers(args, rows).total() * args.q.dim[1] < 4 * threads) rows /= 2;
  return rows;
}

void RunTask(const AttentionArgs& args, const BlockNumbers& blocks, int64_t number, int thread) {
  int64_t begin, end;
  const int64_t s = blocks.Find(number % blocks.total(), &begin, &end);
  if (begin >= end) return;
  const int64_t head_dim = args.q.dim[2], kv_len = KvLen(args, s);
  const size_t i = static_cast<size_t>(s);
  const int64_t q_len = args.q_offsets[i + 1] - args.q_offsets[i];
  const int64_t position = args.q_positions.empty() ? kv_len - q_len : args.q_positions[i];
  AttentionScratch scratch;
  const int64_t scratch_bytes = scratch.Carve(nullptr, head_dim);
  scratch.Carve(args.scratch.as<char>() + thread * scratch_bytes, head_dim);
  const AttentionTask task{
      &args, s, number / blocks.total(), args.q_offsets[i] + begin, end - begin, position + begin,
      kv_len};
  HWY_DYNAMIC_DISPATCH(AttendTask)(task, scratch);
}

}  // namespace

void Attention(const AttentionArgs& args, Stream& stream) {
  constexpr int64_t kSmallWork = 200000;  // about 10 us: not worth waking a thread
  const BlockNumbers blocks(args, BlockRows(args, stream.pool().threads()));
  const int64_t tasks = blocks.total() * args.q.dim[1];
  if (Work(args) < kSmallWork) {
    for (int64_t number = 0; number < tasks; ++number) RunTask(args, blocks, number, 0);
    return;
  }
  stream.pool().ParallelFor(
      tasks, [&](int64_t number, int thread) { RunTask(args, blocks, number, thread); });
}

int64_t AttentionScratchBytes(int64_t, int64_t head_dim, const Stream& stream) {
  AttentionScratch scratch;
  return scratch.Carve(nullptr, head_dim) * stream.pool().threads();
}

}  // namespace quintet::cpu
#endif
