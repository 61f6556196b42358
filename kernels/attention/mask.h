// Column masks (FlashMask, arXiv 2410.01359) hide (query, key) pairs from attention in addition to
// causality: each key, a column of the score matrix, has up to two ranges of query positions that
// do not see it. Summaries of 64 keys (MaskTile) tell whether a tile is hidden, visible or mixed
// without reading each key's ranges. Compiled by both backends.
#pragma once

#include <climits>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/base/host_device.h"

namespace quintet {

constexpr int kMaskTileKeys = 64;  // keys per summary, counted from each sequence's first key

// Each key of a tile has a range [begin, end) of query positions that do not see it. MaskRange
// summarises a tile: the minimum and maximum of the begins, and those of the ends.
struct MaskRange {
  int32_t begin_min, begin_max, end_min, end_max;

  // Hides: this range hides every key of the tile from every query in [row_begin, row_end).
  // Touches: it may hide some key of the tile from some of these queries.
  QT_HOST_DEVICE bool Hides(int row_begin, int row_end) const {
    return row_begin >= begin_max && row_end <= end_min;
  }
  QT_HOST_DEVICE bool Touches(int row_begin, int row_end) const {
    return row_begin < end_max && row_end > begin_min;
  }
  QT_HOST_DEVICE void Add(const MaskRange& other) {
    if (other.begin_min < begin_min) begin_min = other.begin_min;
    if (other.begin_max > begin_max) begin_max = other.begin_max;
    if (other.end_min < end_min) end_min = other.end_min;
    if (other.end_max > end_max) end_max = other.end_max;
  }
};

// Visibility of a tile of keys to some queries. kAll: every query sees every key. kNone: no query
// sees any key. kSome: each (query, key) pair must be tested.
enum class TileVisibility : uint8_t { kAll, kSome, kNone };

struct MaskTile {
  MaskRange lower, upper;

  QT_HOST_DEVICE TileVisibility View(int row_begin, int row_end) const {
    if (lower.Hides(row_begin, row_end) || upper.Hides(row_begin, row_end))
      return TileVisibility::kNone;
    return lower.Touches(row_begin, row_end) || upper.Touches(row_begin, row_end)
               ? TileVisibility::kSome
               : TileVisibility::kAll;
  }
  QT_HOST_DEVICE void Add(const MaskTile& other) {
    lower.Add(other.lower);
    upper.Add(other.upper);
  }
};

// The arrays of a ColumnMask as pointers to the memory of the backend that reads them (host or
// device); null for empty spans.
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
    return At(key).View(row, row + 1) == TileVisibility::kNone;
  }
};

// Index in ColumnMask::tiles of a sequence's first summary. Summaries of consecutive sequences are
// stored with gaps, so that the index is computed without a table. first_key: index of the
// sequence's first key among the packed keys.
QT_HOST_DEVICE inline int64_t FirstMaskTile(int64_t first_key, int64_t sequence) {
  return first_key / kMaskTileKeys + sequence;
}

// Key j of the packed keys is hidden from queries of its sequence at positions [lower_begin[j],
// lower_end[j]) and [upper_begin[j], upper_end[j]), positions as in AttentionArgs::q_positions. A
// range with begin >= end is empty. Without lower_begin there is no lower range; without lower_end
// it extends to the last query. Without upper_end there is no upper range; without upper_begin it
// starts at the first query.
struct ColumnMask {
  absl::Span<const int32_t> lower_begin, lower_end, upper_begin, upper_end;  // [k_total] or empty
  absl::Span<const MaskTile> tiles;  // [MaskTiles(kv_offsets)] from SummariseMask

  MaskColumns columns() const {
    const auto data = [](absl::Span<const int32_t> s) { return s.empty() ? nullptr : s.data(); };
    return {data(lower_begin), data(lower_end), data(upper_begin), data(upper_end)};
  }
};

// Size of ColumnMask::tiles for these packed keys, including the gaps between sequences.
inline int64_t MaskTiles(absl::Span<const int32_t> kv_offsets) {
  return kv_offsets.empty()
             ? 0
             : FirstMaskTile(kv_offsets.back(), static_cast<int64_t>(kv_offsets.size()) - 1);
}
// Fills `tiles` [MaskTiles(kv_offsets)] with the summaries of `columns`. Needed once per batch,
// because all layers and heads have the same mask.
void SummariseMask(const MaskColumns& columns, absl::Span<const int32_t> kv_offsets,
                   absl::Span<MaskTile> tiles);

}  // namespace quintet
