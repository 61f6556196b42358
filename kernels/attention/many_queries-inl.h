// CPU attention of many queries: each SIMD lane computes its own query; keys and values are
// broadcast to all lanes. Compute bound (multiply-adds).
#include <algorithm>

#include "kernels/attention/task_cpu.h"
#include "kernels/attention/tile-inl.h"

#if defined(QUINTET_KERNELS_ATTENTION_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUINTET_KERNELS_ATTENTION_WIDE_INL_H_
#undef QUINTET_KERNELS_ATTENTION_WIDE_INL_H_
#else
#define QUINTET_KERNELS_ATTENTION_WIDE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

// ---- Wide layout (SIMD lanes are queries): scores p [keys][kGroup], queries q_t and outputs o_t
// (sums of P V) [head_dim][kGroup] ----

// p[key][i] = fma(q[i] . k[key], scale, bias) for the kKeys keys from j on and for the queries i of
// kVectors SIMD vectors. The bias of query i and a key is strip[kKeyTile - 1 - key + i].
template <int kKeys, int kVectors>
HWY_INLINE void ScoreKeys(const float* q_t, const float* k, int64_t k_stride, int64_t head_dim,
                          float scale, const float* strip, int64_t j, float* p) {
  const F32 d;
  V32 sum[kKeys][kVectors];
  for (int i = 0; i < kKeys; ++i) {
    for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(d);
  }
  const float* key = k + j * k_stride;
  for (int64_t c = 0; c < head_dim; ++c) {
    V32 q[kVectors];
    for (int v = 0; v < kVectors; ++v) q[v] = hn::LoadU(d, q_t + c * kGroup + v * kN);
    for (int i = 0; i < kKeys; ++i) {
      const auto broadcast = hn::Set(d, key[i * k_stride + c]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(broadcast, q[v], sum[i][v]);
    }
  }
  const auto scale_v = hn::Set(d, scale);
  for (int i = 0; i < kKeys; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const auto bias = hn::LoadU(d, strip + (kKeyTile - 1 - j - i) + v * kN);
      hn::StoreU(hn::MulAdd(sum[i][v], scale_v, bias), d, p + (j + i) * kGroup + v * kN);
    }
  }
}

// o_t[c] = o_t[c] * correction + sum of v[j][c] p[j] over the tile's keys j, for channels c to c +
// kChannels - 1 and kVectors SIMD vectors of queries.
template <int kChannels, int kVectors>
HWY_INLINE void AddValues(const float* p, const float* v, int64_t v_stride, int64_t keys,
                          const V32* correction, int64_t c, float* o_t) {
  const F32 d;
  V32 sum[kChannels][kVectors];
  for (int i = 0; i < kChannels; ++i) {
    for (int u = 0; u < kVectors; ++u) {
      sum[i][u] = hn::Mul(hn::LoadU(d, o_t + (c + i) * kGroup + u * kN), correction[u]);
    }
  }
  const float* value = v + c;
  for (int64_t j = 0; j < keys; ++j, value += v_stride) {
    V32 weight[kVectors];
    for (int u = 0; u < kVectors; ++u) weight[u] = hn::LoadU(d, p + j * kGroup + u * kN);
    for (int i = 0; i < kChannels; ++i) {
      const auto broadcast = hn::Set(d, value[i]);
      for (int u = 0; u < kVectors; ++u) {
        sum[i][u] = hn::MulAdd(broadcast, weight[u], sum[i][u]);
      }
    }
  }
  for (int i = 0; i < kChannels; ++i) {
    for (int u = 0; u < kVectors; ++u) {
      hn::StoreU(sum[i][u], d, o_t + (c + i) * kGroup + u * kN);
    }
  }
}

// One step of the online softmax for kVectors SIMD vectors of queries: replaces the scores p [keys]
// by P = exp(score - max), updates the running row_max and row_sum, and sets `correction` to the
// factor by which the caller must multiply its sums over earlier keys. For a row that has seen no
// key, row_max stays -inf and P is 0.
template <int kVectors>
HWY_INLINE void SoftmaxTile(int64_t keys, float* p, float* row_max, float* row_sum,
                            V32* correction) {
  const F32 d;
  const auto minus_inf = hn::Set(d, kMinusInf);
  for (int u = 0; u < kVectors; ++u) {
    const auto old_max = hn::LoadU(d, row_max + u * kN);
    auto max = old_max;
    float* column = p + u * kN;
    for (int64_t j = 0; j < keys; ++j) max = hn::Max(hn::LoadU(d, column + j * kGroup), max);
    const auto reference = hn::IfThenZeroElse(hn::Eq(max, minus_inf), max);
    correction[u] = ExpNegative(hn::Sub(old_max, reference));
    auto sum = hn::Mul(hn::LoadU(d, row_sum + u * kN), correction[u]);
    for (int64_t j = 0; j < keys; ++j) {
      const auto weight = ExpNegative(hn::Sub(hn::LoadU(d, column + j * kGroup), reference));
      hn::StoreU(weight, d, column + j * kGroup);
      sum = hn::Add(sum, weight);
    }
    hn::StoreU(max, d, row_max + u * kN);
    hn::StoreU(sum, d, row_sum + u * kN);
  }
}

template <int kVectors>
inline void ScoreTile(const float* q_t, const float* k, int64_t k_stride, int64_t head_dim,
                      float scale, const float* strip, int64_t keys, float* p) {
  int64_t j = 0;
  for (; j + kAtOnce <= keys; j += kAtOnce) {
    ScoreKeys<kAtOnce, kVectors>(q_t, k, k_stride, head_dim, scale, strip, j, p);
  }
  for (; j < keys; ++j) {
    ScoreKeys<1, kVectors>(q_t, k, k_stride, head_dim, scale, strip, j, p);
  }
}

template <int kVectors>
inline void AddValueTile(const float* p, const float* v, int64_t v_stride, int64_t keys,
                         const V32* correction, int64_t head_dim, float* o_t) {
  int64_t c = 0;
  for (; c + kAtOnce <= head_dim; c += kAtOnce) {
    AddValues<kAtOnce, kVectors>(p, v, v_stride, keys, correction, c, o_t);
  }
  for (; c < head_dim; ++c) {
    AddValues<1, kVectors>(p, v, v_stride, keys, correction, c, o_t);
  }
}

// The unit of work of the functions of this file: at most kGroup queries and one tile of keys.
struct WideTile {
  const AttentionTask* task;
  const DistanceBias* bias;
  const AttentionScratch* scratch;
  int64_t first, rows;  // first query of the group within the task, number of queries
  bool global;          // the tile is one of the global keys
  int64_t begin, keys;  // first key of the tile within the sequence, number of keys
};

// p += FIRE's bias. `strip` holds FireDistance (bias.h) of the tile's diagonals: strip[kKeyTile - 1
// - j + i] is for key j and query i.
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

// p += the bias of global keys.
template <int kVectors>
void AddGlobalBiasWide(const WideTile& t) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const GlobalBias bias(*t.task->args->globals, t.task->global_keys, t.task->head);
  HWY_ALIGN int32_t blocks[kGroup];
  for (int64_t i = 0; i < kVectors * kN; ++i) {
    blocks[i] = bias.BlockOf(t.task->position + t.first + i);
  }
  const auto add = [&](int64_t j, int u, V32 value) HWY_ATTR {
    float* score = t.scratch->p + j * kGroup + u * kN;
    hn::StoreU(hn::Add(hn::LoadU(d, score), value), d, score);
  };
  // Most tiles of a long input are so far from the queries' blocks that all have the same bias.
  const auto [first_block, last_block] = std::minmax_element(blocks, blocks + kVectors * kN);
  const int32_t lowest = static_cast<int32_t>(t.begin) - *last_block;
  const int32_t highest = static_cast<int32_t>(t.begin + t.keys - 1) - *first_block;
  if (lowest >= bias.saturation() || highest <= -bias.saturation()) {
    const auto value = hn::Set(d, bias.At(lowest));
    for (int64_t j = 0; j < t.keys; ++j) {
      for (int u = 0; u < kVectors; ++u) add(j, u, value);
    }
    return;
  }
  const auto limit = hn::Set(di, bias.saturation()), least = hn::Neg(limit);
  for (int64_t j = 0; j < t.keys; ++j) {
    const auto key = hn::Set(di, static_cast<int32_t>(t.begin + j));
    for (int u = 0; u < kVectors; ++u) {
      const auto difference = hn::Sub(key, hn::Load(di, blocks + u * kN));
      const auto index = hn::Add(hn::Max(hn::Min(difference, limit), least), limit);
      add(j, u, hn::GatherIndex(d, bias.table(), index));
    }
  }
}

// Sets to -inf the scores of the tile's (query, key) pairs that the mask (mask.h) hides.
template <int kVectors>
void HideMaskedWide(const WideTile& t, const TaskMask& mask) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const auto minus_inf = hn::Set(d, kMinusInf);
  for (int64_t j = 0; j < t.keys; ++j) {
    const MaskTile column = mask.Column(t.begin + j);
    for (int u = 0; u < kVectors; ++u) {
      const auto row = hn::Iota(di, mask.Position(t.first + u * kN));
      const auto in = [&](const MaskRange& run) HWY_ATTR {
        return hn::AndNot(hn::Lt(row, hn::Set(di, run.begin_max)),
                          hn::Lt(row, hn::Set(di, run.end_min)));
      };
      const auto hidden = hn::Or(in(column.lower), in(column.upper));
      float* score = t.scratch->p + j * kGroup + u * kN;
      hn::StoreU(hn::IfThenElse(hn::RebindMask(d, hidden), minus_inf, hn::LoadU(d, score)), d,
                 score);
    }
  }
}

template <int kVectors>
void AttendTileWide(const WideTile& t, const TaskMask& mask) {
  const AttentionScratch& s = *t.scratch;
  const int64_t head_dim = t.task->args->q.dim[2], stride = PaddedDim(head_dim);
  const int64_t position = t.task->position + t.first;
  HWY_ALIGN float strip[kKeyTile + kGroup];
  if (t.global) {
    std::fill_n(strip, kKeyTile - 1 + kGroup, 0.0f);
  } else {
    t.bias->FillStrip(t.begin - position + kKeyTile - 1, -1, kKeyTile - 1 + kGroup, strip);
  }
  const float* q_t = s.q_t + t.first * head_dim;
  float* o_t = s.o_t + t.first * head_dim;
  ScoreTile<kVectors>(q_t, s.k, stride, head_dim, t.task->args->scale, strip, t.keys, s.p);
  if (t.global) {
    AddGlobalBiasWide<kVectors>(t);
  } else {
    if (HasFire(*t.task->args)) AddFireWide<kVectors>(t);
    if (mask.View(t.begin, t.first, t.rows) == TileVisibility::kSome)
      HideMaskedWide<kVectors>(t, mask);
  }
  V32 correction[kVectors];
  SoftmaxTile<kVectors>(t.keys, s.p, s.row_max + t.first, s.row_sum + t.first, correction);
  AddValueTile<kVectors>(s.p, s.v, stride, t.keys, correction, head_dim, o_t);
}

// Copies the queries of the task's current head to scratch, channel-major, and initialises the
// outputs and softmax statistics of these queries.
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

// out = sums / row_sum; zeros for rows that saw no key.
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

// Copies the keys and values of tile `now` to scratch, and prefetches tile `ahead` (null: none).
// The hardware prefetcher does not help, because consecutive rows of a packed matrix are kilobytes
// apart, usually in different memory pages.
void LoadTileWide(const AttentionScratch& s, int64_t head_dim, const KeyTile& now,
                  const KeyTile* ahead) {
  for (int64_t j = 0; j < now.count; ++j) {
    CopyRow(now.rows.k[j], head_dim, s.k + j * PaddedDim(head_dim));
    CopyRow(now.rows.v[j], head_dim, s.v + j * PaddedDim(head_dim));
    if (ahead != nullptr) ahead->Prefetch(j, head_dim);
  }
}

// Adds one K/V tile to the outputs of all groups (kGroup queries each) of a task.
void AttendGroupsWide(const TileIterator& iterator, const TaskMask& mask, const KeyTile& keys,
                      const AttentionScratch& s) {
  const DistanceBias bias = iterator.bias();
  for (int64_t first = 0; first < iterator.task.rows; first += kGroup) {
    const int64_t rows = std::min(kGroup, iterator.task.rows - first);
    const int64_t position = iterator.task.position + first;
    if (!iterator.global &&
        (bias.Hidden(keys.begin - (position + rows - 1), keys.begin + keys.count - 1 - position) ||
         mask.View(keys.begin, first, rows) == TileVisibility::kNone)) {
      continue;
    }
    const WideTile tile{&iterator.task, &bias,           &s,         first,
                        rows,           iterator.global, keys.begin, keys.count};
    rows > kN ? AttendTileWide<2>(tile, mask) : AttendTileWide<1>(tile, mask);
  }
}

void AttendWide(const AttentionTask& whole, const AttentionScratch& s) {
  const TaskMask mask(whole);
  TileIterator iterator(whole);
  KeyTile tiles[2];
  tiles[0].Point(iterator);
  for (int turn = 0; !iterator.done(); turn ^= 1) {
    TileIterator ahead = iterator;
    ahead.Next();
    if (!ahead.done()) tiles[turn ^ 1].Point(ahead);
    if (iterator.first()) BeginWide(iterator.task, s);
    const KeyTile& now = tiles[turn];
    if (now.count > 0 &&
        (iterator.global || mask.View(now.begin, 0, whole.rows) != TileVisibility::kNone)) {
      LoadTileWide(s, whole.args->q.dim[2], now, ahead.done() ? nullptr : &tiles[turn ^ 1]);
      AttendGroupsWide(iterator, mask, now, s);
    }
    if (iterator.last()) EndWide(iterator.task, s);
    iterator = ahead;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
