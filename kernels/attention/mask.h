// Column masks (FlashMask, arXiv 2410.01359): (query, key) pairs that attention hides in addition
// to causality. The mask of a key is up to two ranges of query positions that do not see it.
// Summaries of 64 keys tell whether a tile is hidden, visible or mixed without reading each key's
// mask. Compiled by both backends.
#pragma once

#include <climits>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/base/host_device.h"

namespace quintet {

constexpr int kMaskTileKeys = 64;  // keys per summary, counted from each sequence's first key

// A range [begin, end) of query positions that do not see a key. For a tile of keys: the minimum
// and maximum of its keys' begins and ends.
struct MaskRange {
  int32_t begin_min, begin_max, end_min, end_max;

  // Hides: no query in [row_begin, row_end) sees any key of the tile. Touches: some query may not
  // see some key.
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

// Visibility of a tile of keys to some queries. kSome: each pair must be tested.
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

// A ColumnMask as pointers of the backend; null for empty spans.
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

// Index of a sequence's first summary. Summaries of consecutive sequences are stored with gaps, so
// that the index is computed without a table. `first_key`: index of the sequence's first key among
// the packed keys.
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

// Number of summaries for packed keys, including gaps.
inline int64_t MaskTiles(absl::Span<const int32_t> kv_offsets) {
  return kv_offsets.empty()
             ? 0
             : FirstMaskTile(kv_offsets.back(), static_cast<int64_t>(kv_offsets.size()) - 1);
}
// Fills tiles [MaskTiles(kv_offsets)]. Needed once per batch: masks are equal for all layers and
// heads.
void SummariseMask(const MaskColumns& columns, absl::Span<const int32_t> kv_offsets,
                   absl::Span<MaskTile> tiles);

}  // namespace quintet
