// CPU attention of few queries: SIMD lanes are keys in Q K^T and channels in P V. Memory bound:
// keys and values are read once for all query rows.
#include <algorithm>

#include "kernels/attention/task_cpu.h"
#include "kernels/attention/tile-inl.h"

#if defined(QUINTET_KERNELS_ATTENTION_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUINTET_KERNELS_ATTENTION_FEW_INL_H_
#undef QUINTET_KERNELS_ATTENTION_FEW_INL_H_
#else
#define QUINTET_KERNELS_ATTENTION_FEW_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace quintet::cpu {
namespace HWY_NAMESPACE {

// ---- Few-rows layout (SIMD lanes are keys or channels): scores s [rows][kKeyTile], keys k_t
// [head_dim][kKeyTile], outputs o (sums of P V) [rows][stride] ----

// s[r][j] = fma(q[r] . k[j], scale, s[r][j]) for kRows query rows r and the keys j of kVectors SIMD
// vectors. On entry s holds the bias.
template <int kRows, int kVectors>
HWY_INLINE void ScoreFew(const float* const* q, const float* k_t, int64_t head_dim, float scale,
                         float* s) {
  const F32 d;
  V32 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) sum[r][u] = hn::Zero(d);
  }
  for (int64_t c = 0; c < head_dim; ++c, k_t += kKeyTile) {
    V32 key[kVectors];
    for (int u = 0; u < kVectors; ++u) key[u] = hn::LoadU(d, k_t + u * kN);
    for (int r = 0; r < kRows; ++r) {
      const auto broadcast = hn::Set(d, q[r][c]);
      for (int u = 0; u < kVectors; ++u) sum[r][u] = hn::MulAdd(broadcast, key[u], sum[r][u]);
    }
  }
  const auto scale_v = hn::Set(d, scale);
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) {
      float* score = s + r * kKeyTile + u * kN;
      hn::StoreU(hn::MulAdd(sum[r][u], scale_v, hn::LoadU(d, score)), d, score);
    }
  }
}

// o[r][c ..] = o[r][c ..] * correction[r] + sum over keys j of s[r][j] v[j][c ..], for kRows query
// rows r and kVectors SIMD vectors of channels from c on.
template <int kRows, int kVectors>
HWY_INLINE void AddValuesFew(const float* s, const float* const* v, int64_t keys,
                             const float* correction, int64_t c, float* o, int64_t o_stride) {
  const F32 d;
  V32 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) {
      sum[r][u] = hn::Mul(hn::LoadU(d, o + r * o_stride + c + u * kN), hn::Set(d, correction[r]));
    }
  }
  for (int64_t j = 0; j < keys; ++j) {
    V32 value[kVectors];
    for (int u = 0; u < kVectors; ++u) value[u] = hn::LoadU(d, v[j] + c + u * kN);
    for (int r = 0; r < kRows; ++r) {
      const auto weight = hn::Set(d, s[r * kKeyTile + j]);
      for (int u = 0; u < kVectors; ++u) sum[r][u] = hn::MulAdd(value[u], weight, sum[r][u]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int u = 0; u < kVectors; ++u) {
      hn::StoreU(sum[r][u], d, o + r * o_stride + c + u * kN);
    }
  }
}

// One step of the online softmax for one query row: replaces the scores s [keys] by P = exp(s -
// max), updates the running row_max and row_sum, and sets `correction` to the factor by which the
// caller must multiply its sums over earlier keys. s is padded with -inf to whole SIMD vectors.
HWY_INLINE void SoftmaxRow(int64_t keys, float* s, float* row_max, float* row_sum,
                           float* correction) {
  const F32 d;
  auto max_v = hn::Set(d, *row_max);
  for (int64_t j = 0; j < keys; j += kN) max_v = hn::Max(hn::LoadU(d, s + j), max_v);
  const float max = Max(max_v);
  const float reference = max == kMinusInf ? 0.0f : max;
  *correction = hn::GetLane(ExpNegative(hn::Set(d, *row_max - reference)));
  for (int64_t j = 0; j < keys; j += kN) {
    hn::StoreU(ExpNegative(hn::Sub(hn::LoadU(d, s + j), hn::Set(d, reference))), d, s + j);
  }
  float sum = *row_sum * *correction;
  for (int64_t j = 0; j < keys; ++j) sum += s[j];
  *row_max = max;
  *row_sum = sum;
}

// s[j] = bias of query row `i` and key begin + j, for j < keys. The rest of the last SIMD vector of
// s is filled with -inf.
void FillBiasFew(const AttentionTask& task, const DistanceBias& bias, int64_t i, int64_t begin,
                 int64_t keys, float* s) {
  bias.FillStrip(begin - (task.position + i), 1, keys, s);
  for (int64_t j = keys; j % kN != 0; ++j) s[j] = kMinusInf;
}

// s += the bias of query row `i` and the global keys from `begin` on.
void AddGlobalBiasFew(const AttentionTask& task, int64_t i, int64_t begin, int64_t keys, float* s) {
  const GlobalBias bias(*task.args->globals, task.global_keys, task.head);
  const int32_t first = static_cast<int32_t>(begin) - bias.BlockOf(task.position + i);
  for (int64_t j = 0; j < keys; ++j) s[j] += bias.At(first + static_cast<int32_t>(j));
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

// Sets to -inf the scores of all keys that the mask (mask.h) hides from query row `i`. s [keys]:
// scores of the keys from `begin` on.
void HideMaskedFew(const TaskMask& mask, int64_t i, int64_t begin, int64_t keys, float* s) {
  const int row = mask.Position(i);
  for (int64_t j = 0; j < keys; ++j) {
    if (mask.Column(begin + j).View(row, row + 1) == TileVisibility::kNone) s[j] = kMinusInf;
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

// Adds one K/V tile, that of the iterator, to the softmax statistics and outputs of all query rows
// of the task. Keys are channel-major in scratch; value rows are padded to whole SIMD vectors.
void AttendTileFew(const TileIterator& iterator, const AttentionScratch& scratch,
                   const TaskMask& mask, const KeyTile& tile) {
  const AttentionTask& task = iterator.task;
  const DistanceBias bias = iterator.bias();
  // Number of query rows processed together: their accumulators (rows x 4 SIMD vectors) fit into
  // the registers.
  constexpr int64_t kTogether = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  const int64_t head_dim = task.args->q.dim[2];
  const int64_t keys = tile.count, stride = PaddedDim(head_dim);
  const int64_t padded_dim = (head_dim + kN - 1) / kN * kN;
  const float* q[kFewRows];
  float correction[kFewRows];
  float* s = scratch.p;
  for (int64_t i = 0; i < task.rows; ++i) {
    q[i] = QueryRow(task, i);
    if (iterator.global) {
      std::fill_n(s + i * kKeyTile, kKeyTile, kMinusInf);
      std::fill_n(s + i * kKeyTile, keys, 0.0f);
    } else {
      FillBiasFew(task, bias, i, tile.begin, keys, s + i * kKeyTile);
    }
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
    if (iterator.global) {
      AddGlobalBiasFew(task, i, tile.begin, keys, s + i * kKeyTile);
    } else {
      if (HasFire(*task.args)) AddFireFew(task, i, tile.begin, keys, s + i * kKeyTile);
      if (mask.View(tile.begin, i, 1) != TileVisibility::kAll) {
        HideMaskedFew(mask, i, tile.begin, keys, s + i * kKeyTile);
      }
    }
    SoftmaxRow(keys, s + i * kKeyTile, scratch.row_max + i, scratch.row_sum + i, correction + i);
  }
  for (i = 0; i + kTogether <= task.rows; i += kTogether) {
    AddValueRowsFew<kTogether>(s + i * kKeyTile, tile.rows.v, keys, correction + i,
                               scratch.o_t + i * stride, stride, padded_dim);
  }
  for (; i < task.rows; ++i) {
    AddValueRowsFew<1>(s + i * kKeyTile, tile.rows.v, keys, correction + i,
                       scratch.o_t + i * stride, stride, padded_dim);
  }
}

void EndFew(const AttentionTask& task, const AttentionScratch& s) {
  const int64_t head_dim = task.args->q.dim[2];
  for (int64_t i = 0; i < task.rows; ++i) {
    const float* o = s.o_t + i * PaddedDim(head_dim);
    float* out = OutRow(task, i);
    for (int64_t c = 0; c < head_dim; ++c)
      out[c] = s.row_sum[i] == 0.0f ? 0.0f : o[c] / s.row_sum[i];
  }
}

// Loads the keys of tile `now` into scratch, channel-major. Keys and values of a decoder step are
// usually not in any CPU cache; hence DRAM bandwidth is the bottleneck. Therefore rows are copied
// in memory order before they are transposed, and tile `ahead` is prefetched row by row
// (measurements: attention/NOTES.md).
void LoadKeysFew(const AttentionScratch& s, int64_t head_dim, KeyTile* now, const KeyTile* ahead) {
  for (int64_t j = 0; j < now->count; ++j) {
    float* copy = s.q_t + j * PaddedDim(head_dim);
    CopyRow(now->rows.k[j], head_dim, copy);
    now->rows.k[j] = copy;
    if (ahead != nullptr) ahead->Prefetch(j, head_dim);
  }
  Transpose(now->rows.k, now->count, head_dim, s.k, kKeyTile);
  if (head_dim % kN == 0) return;
  GatherRows(now->rows.v, now->count, head_dim, s.v);
  for (int64_t j = 0; j < now->count; ++j) now->rows.v[j] = s.v + j * PaddedDim(head_dim);
}

void AttendFew(const AttentionTask& whole, const AttentionScratch& s) {
  const int64_t head_dim = whole.args->q.dim[2];
  const TaskMask mask(whole);
  TileIterator iterator(whole);
  KeyTile tiles[2];
  tiles[0].Point(iterator);
  for (int turn = 0; !iterator.done(); turn ^= 1) {
    TileIterator ahead = iterator;
    ahead.Next();
    if (!ahead.done()) tiles[turn ^ 1].Point(ahead);
    if (iterator.first()) {
      std::fill_n(s.o_t, whole.rows * PaddedDim(head_dim), 0.0f);
      std::fill_n(s.row_max, whole.rows, kMinusInf);
      std::fill_n(s.row_sum, whole.rows, 0.0f);
    }
    if (tiles[turn].count > 0 &&
        (iterator.global || mask.View(tiles[turn].begin, 0, whole.rows) != TileVisibility::kNone)) {
      LoadKeysFew(s, head_dim, &tiles[turn], ahead.done() ? nullptr : &tiles[turn ^ 1]);
      AttendTileFew(iterator, s, mask, tiles[turn]);
    }
    if (iterator.last()) EndFew(iterator.task, s);
    iterator = ahead;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quintet::cpu
HWY_AFTER_NAMESPACE();

#endif  // toggle
