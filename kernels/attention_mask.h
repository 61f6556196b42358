// Column masks (FlashMask, arXiv 2410.01359): what attention hides besides what causality does, as
// up to two runs of queries for each key, and what is known of a tile of keys without looking at
// each. One text for both backends.
#pragma once

#include <climits>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/host_device.h"

namespace quintet {

constexpr int kMaskTileKeys = 64;  // summaries cover as many keys, from each sequence's first on

// Of one key or of a tile of keys: the queries at positions [begin, end) are hidden from a key. Of
// one key, min and max are the same.
struct MaskRun {
  int32_t begin_min, begin_max, end_min, end_max;

  // All of the rows [row_begin, row_end) are hidden from all of the keys; from any of them,
  // perhaps.
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

// kSome: each pair has to be looked at. It may turn out that all or none are hidden.
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

// The columns of a mask where a backend reads them; null: as ColumnMask says of empty spans.
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

// Number of a sequence's first summary: summaries of all sequences lie one after another, with room
// to spare so that no table is needed. `first_key`: the sequence's first key among the packed ones.
QT_HOST_DEVICE inline int64_t FirstMaskTile(int64_t first_key, int64_t sequence) {
  return first_key / kMaskTileKeys + sequence;
}

// Key j of the packed keys is hidden from the queries of its sequence at the positions
// [lower_begin[j], lower_end[j]) and [upper_begin[j], upper_end[j]); positions as
// AttentionArgs::q_positions counts them. Without lower_begin or upper_end there is no such run;
// without lower_end it reaches to the last query, without upper_begin it begins with the first.
// Either run may be empty (begin >= end).
struct ColumnMask {
  absl::Span<const int32_t> lower_begin, lower_end, upper_begin, upper_end;  // [k_total] or empty
  absl::Span<const MaskTile> tiles;  // what SummariseMask made of them

  MaskColumns columns() const {
    const auto data = [](absl::Span<const int32_t> s) { return s.empty() ? nullptr : s.data(); };
    return {data(lower_begin), data(lower_end), data(upper_begin), data(upper_end)};
  }
};

// How many summaries packed keys need.
inline int64_t MaskTiles(absl::Span<const int32_t> kv_offsets) {
  return kv_offsets.empty()
             ? 0
             : FirstMaskTile(kv_offsets.back(), static_cast<int64_t>(kv_offsets.size()) - 1);
}
// Fills tiles [MaskTiles(kv_offsets)]; once for all layers and heads.
void SummariseMask(const MaskColumns& columns, absl::Span<const int32_t> kv_offsets,
                   absl::Span<MaskTile> tiles);

}  // namespace quintet
