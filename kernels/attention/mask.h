// Column masks (FlashMask, arXiv 2410.01359) hide (query, key) pairs from attention in addition to
// causality: each key, a column of the score matrix, has up to two ranges of query positions that
// do not see it. A MaskTile summarises 64 keys: for a range of queries it tells whether all of
// these keys are hidden, all visible, or neither, without reading each key's ranges. The CPU code
// and the GPU code include this header.
#pragma once

#include <climits>
#include <cstdint>
#include <span>

#include "kernels/base/host_device.h"

namespace quintet {

constexpr int kMaskTileKeys = 64;  // keys per summary, counted from each sequence's first key

// Each key of a tile has a range [begin, end) of query positions that do not see it. MaskRange
// summarises these ranges: the minimum and maximum of `begin` and of `end`.
struct MaskRange {
  int32_t begin_min, begin_max, end_min, end_max;

  // Hides: whether the ranges hide every key of the tile from every query in [row_begin, row_end).
  // Touches: whether they may hide some key of the tile from some of these queries.
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

// Index in ColumnMask::tiles of a sequence's first MaskTile. Between the MaskTiles of consecutive
// sequences there may be an unused entry; hence the index can be computed without a table.
// first_key: index of the sequence's first key among the packed keys.
QT_HOST_DEVICE inline int64_t FirstMaskTile(int64_t first_key, int64_t sequence) {
  return first_key / kMaskTileKeys + sequence;
}

// Largest ColumnMask::reach. Sums of positions, lengths and a reach fit 32 bits.
constexpr int64_t kMaxMaskReach = 1 << 24;

// A ColumnMask hides key j of the packed keys from those queries of its sequence that are at
// positions in the lower range [lower_begin[j], lower_end[j]) or in the upper range
// [upper_begin[j], upper_end[j]). Positions are those of AttentionArgs::q_positions. A range with
// begin >= end contains no position. An array may be absent (an empty span). Without lower_begin
// there is no lower range; with lower_begin but without lower_end, the lower range extends to the
// last query. Without upper_end there is no upper range; with upper_end but without upper_begin,
// the upper range starts at the first query.
struct ColumnMask {
  std::span<const int32_t> lower_begin, lower_end, upper_begin, upper_end;  // [k_total] or empty
  std::span<const MaskTile> tiles;  // [MaskTiles(kv_offsets)] from SummariseMask
  // The caller promises that these ranges hide all keys at more than this distance from a query, so
  // that kernels need not look at their summaries. 0: no promise.
  int64_t reach = 0;

  MaskColumns columns() const {
    const auto data = [](std::span<const int32_t> s) { return s.empty() ? nullptr : s.data(); };
    return {data(lower_begin), data(lower_end), data(upper_begin), data(upper_end)};
  }
};

// Number of entries of ColumnMask::tiles for packed keys with these offsets, including the unused
// entries between sequences.
inline int64_t MaskTiles(std::span<const int32_t> kv_offsets) {
  return kv_offsets.empty()
             ? 0
             : FirstMaskTile(kv_offsets.back(), static_cast<int64_t>(kv_offsets.size()) - 1);
}
// Fills `tiles` [MaskTiles(kv_offsets)]: one summary of the mask `columns` for every 64 keys of a
// sequence. Must be called once per batch; all layers and heads use the same mask.
void SummariseMask(const MaskColumns& columns, std::span<const int32_t> kv_offsets,
                   std::span<MaskTile> tiles);

}  // namespace quintet
