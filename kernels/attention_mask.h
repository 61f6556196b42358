// Column masks (FlashMask, arXiv 2410.01359): which (query, key) pairs attention hides beside those
// of causality. The mask of a key is up to two runs of query positions that do not see it.
// Summaries of 64 keys tell without a look at each key whether a tile is hidden, visible or mixed.
// Both backends compile this file.
#pragma once

#include <climits>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/host_device.h"

namespace quintet {

constexpr int kMaskTileKeys = 64;  // summaries cover as many keys, from each sequence's first on

// A run [begin, end) of query positions that do not see a key; for a tile of keys, the least and
// the greatest of its keys' begins and ends.
struct MaskRun {
  int32_t begin_min, begin_max, end_min, end_max;

  // Hides: no query in [row_begin, row_end) sees any of the keys. Touches: some query may not see
  // some of them.
  QT_HOST_DEVICE bool Hides(int row_begin, int row_end) const {
    return row_begin >= begin_max && row_end <= end_min;
  }
  QT_HOST_DEVICE bool Touches(int row_begin, int row_end) const {
    return row_begin < end_max && row_end > begin_min;
  }
  QT_HOST_DEVICE void Add(const MaskRun& other) {
    if (other.begin_min < begin_min) begin_min = other.begin_min;
    if (other.begin_max > begin_max) begin_max = other.begin_max;
    if (other.end_min < end_min) end_min = other.end_min;
    if (other.end_max > end_max) end_max = other.end_max;
  }
};

// What queries see of a tile of keys. kSome: not known without a look at each pair.
enum class TileView : uint8_t { kAll, kSome, kNone };

struct MaskTile {
  MaskRun lower, upper;

  QT_HOST_DEVICE TileView View(int row_begin, int row_end) const {
    if (lower.Hides(row_begin, row_end) || upper.Hides(row_begin, row_end)) return TileView::kNone;
    return lower.Touches(row_begin, row_end) || upper.Touches(row_begin, row_end) ? TileView::kSome
                                                                                  : TileView::kAll;
  }
  QT_HOST_DEVICE void Add(const MaskTile& other) {
    lower.Add(other.lower);
    upper.Add(other.upper);
  }
};

// The spans of a ColumnMask as addresses of the backend; null for empty ones.
struct MaskColumns {
  const int32_t* lower_begin = nullptr;
  const int32_t* lower_end = nullptr;
  const int32_t* upper_begin = nullptr;
  const int32_t* upper_end = nullptr;

  QT_HOST_DEVICE MaskTile At(int64_t key) const {
    constexpr int32_t kNever = INT_MAX, kAlways = INT_MIN;
    const int32_t lower_from = lower_begin == nullptr ? kNever : lower_begin[key];
    const int32_t lower_to = lower_end == nullptr ? kNever : lower_end[key];
    const int32_t upper_from = upper_begin == nullptr ? kAlways : upper_begin[key];
    const int32_t upper_to = upper_end == nullptr ? kAlways : upper_end[key];
    return {{lower_from, lower_from, lower_to, lower_to},
            {upper_from, upper_from, upper_to, upper_to}};
  }
  QT_HOST_DEVICE bool Hidden(int64_t key, int row) const {
    return At(key).View(row, row + 1) == TileView::kNone;
  }
};

// Index of a sequence's first summary. Sequences' summaries follow one another with some room to
// spare, so that the index needs no table. `first_key`: the sequence's first among the packed keys.
QT_HOST_DEVICE inline int64_t FirstMaskTile(int64_t first_key, int64_t sequence) {
  return first_key / kMaskTileKeys + sequence;
}

// Key j of the packed keys is hidden from queries of its sequence at positions [lower_begin[j],
// lower_end[j]) and [upper_begin[j], upper_end[j]), positions as in AttentionArgs::q_positions. A
// run may be empty (begin >= end). Without lower_begin there is no lower run, without lower_end it
// reaches to the last query; without upper_end there is no upper run, without upper_begin it starts
// at the first query.
struct ColumnMask {
  absl::Span<const int32_t> lower_begin, lower_end, upper_begin, upper_end;  // [k_total] or empty
  absl::Span<const MaskTile> tiles;  // [MaskTiles(kv_offsets)] from SummariseMask

  MaskColumns columns() const {
    const auto data = [](absl::Span<const int32_t> s) { return s.empty() ? nullptr : s.data(); };
    return {data(lower_begin), data(lower_end), data(upper_begin), data(upper_end)};
  }
};

// Number of summaries for packed keys.
inline int64_t MaskTiles(absl::Span<const int32_t> kv_offsets) {
  return kv_offsets.empty()
             ? 0
             : FirstMaskTile(kv_offsets.back(), static_cast<int64_t>(kv_offsets.size()) - 1);
}
// Fills tiles [MaskTiles(kv_offsets)]; once a batch, since masks do not differ by layer or head.
void SummariseMask(const MaskColumns& columns, absl::Span<const int32_t> kv_offsets,
                   absl::Span<MaskTile> tiles);

}  // namespace quintet
