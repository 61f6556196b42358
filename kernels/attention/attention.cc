#include "kernels/attention/attention.h"

#include <algorithm>
#include <span>

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

// Checks that t has q's dtype, number of heads and head_dim, and contiguous channels. The number of
// rows may differ.
void CheckHeads(const Tensor& t, const Tensor& q) {
  QT_CHECK(t.dtype == q.dtype);
  QT_CHECK_EQ(t.rank, 3);
  QT_CHECK_EQ(t.dim[1], q.dim[1]);
  QT_CHECK_EQ(t.dim[2], q.dim[2]);
  QT_CHECK_EQ(t.stride[2], 1);
}

// Checks that the n + 1 offsets are ascending and within [0, rows].
void CheckOffsets(std::span<const int32_t> offsets, size_t n, int64_t rows) {
  QT_CHECK_EQ(offsets.size(), n + 1);
  QT_CHECK_GE(offsets.front(), 0);
  for (size_t s = 0; s < n; ++s) QT_CHECK_LE(offsets[s], offsets[s + 1]);
  QT_CHECK_LE(offsets.back(), rows);
}

void CheckKeys(const AttentionArgs& args, size_t n) {
  if (args.cache == nullptr) {
    CheckHeads(args.k, args.q);
    CheckHeads(args.v, args.q);
    QT_CHECK_EQ(args.k.dim[0], args.v.dim[0]);
    CheckOffsets(args.kv_offsets, n, args.k.dim[0]);
    return;
  }
  QT_CHECK(args.cache->Accepts(args.q.dtype));
  QT_CHECK_EQ(args.cache->heads, args.q.dim[1]);
  QT_CHECK_EQ(args.cache->head_dim, args.q.dim[2]);
  QT_CHECK(args.layer >= 0 && args.layer < args.cache->layers);
  QT_CHECK_EQ(args.kv_lens.size(), n);
  for (int32_t len : args.kv_lens) {
    QT_CHECK_GE(len, 0);
    QT_CHECK(len == 0 || args.slots != nullptr);
    QT_CHECK(n <= 1 || len <= args.slots_stride);
  }
}

void CheckMask(const ColumnMask& mask, const AttentionArgs& args) {
  QT_CHECK(args.cache == nullptr);
  const size_t keys = static_cast<size_t>(args.kv_offsets.back());
  for (const auto& column : {mask.lower_begin, mask.lower_end, mask.upper_begin, mask.upper_end}) {
    QT_CHECK(column.empty() || column.size() >= keys);
  }
  QT_CHECK_GE(static_cast<int64_t>(mask.tiles.size()), MaskTiles(args.kv_offsets));
  QT_CHECK(mask.reach >= 0 && mask.reach <= kMaxMaskReach);
}

void CheckBias(const PositionBias& bias, int64_t heads) {
  if (bias.kind == BiasKind::kNone) return;
  QT_CHECK_EQ(bias.heads, heads);
  if (bias.kind == BiasKind::kTable) {
    QT_CHECK_EQ(bias.table.dim[0], heads);
    QT_CHECK_EQ(bias.table.dim[1], 2 * bias.saturation + 1);
    QT_CHECK_EQ(bias.table.stride[1], 1);
  } else if (bias.kind == BiasKind::kAlibi) {
    QT_CHECK_EQ(bias.slopes.dim[0], heads);
  } else {
    const int64_t segments = bias.segment_slope.dim[1];
    QT_CHECK_GE(segments, 1);
    QT_CHECK_EQ(bias.segment_slope.dim[0], heads);
    QT_CHECK_EQ(bias.segment_offset.dim[0], heads);
    QT_CHECK_EQ(bias.segment_offset.dim[1], segments);
    QT_CHECK(segments == 1 || bias.knots.dim[0] == segments - 1);
  }
}

void CheckGlobals(const GlobalKeys& globals, const AttentionArgs& args, size_t n) {
  QT_CHECK(args.cache == nullptr);
  QT_CHECK(args.bias == nullptr || args.bias->kind != BiasKind::kFire);
  CheckHeads(globals.k, args.q);
  CheckHeads(globals.v, args.q);
  QT_CHECK_EQ(globals.k.dim[0], globals.v.dim[0]);
  CheckOffsets(globals.offsets, n, globals.k.dim[0]);
  QT_CHECK(globals.block >= 1 && globals.block <= INT32_MAX);
  QT_CHECK(globals.bias != nullptr && globals.bias->kind == BiasKind::kTable);
  CheckBias(*globals.bias, args.q.dim[1]);
  for (size_t s = 0; s < n; ++s) {
    QT_CHECK_GE(args.q_positions.empty() ? args.kv_offsets[s + 1] - args.kv_offsets[s] -
                                               (args.q_offsets[s + 1] - args.q_offsets[s])
                                         : args.q_positions[s],
                0);
  }
}

}  // namespace

void Attention(const AttentionArgs& args, Stream& stream) {
  QT_CHECK_GE(args.q_offsets.size(), 1u);
  const size_t n = args.q_offsets.size() - 1;
  const int64_t heads = args.q.dim[1], head_dim = args.q.dim[2];
  QT_CHECK(IsActivation(args.q.dtype, stream));
  QT_CHECK(head_dim >= 1 && head_dim <= 256);
  CheckHeads(args.q, args.q);
  CheckHeads(args.out, args.q);
  QT_CHECK_EQ(args.q.dim[0], args.out.dim[0]);
  CheckOffsets(args.q_offsets, n, args.q.dim[0]);
  CheckKeys(args, n);
  QT_CHECK(args.q_positions.empty() || args.q_positions.size() == n);
  if (args.bias != nullptr) CheckBias(*args.bias, heads);
  if (args.mask != nullptr) CheckMask(*args.mask, args);
  if (args.globals != nullptr) CheckGlobals(*args.globals, args, n);
  const int64_t packed_keys = args.cache == nullptr ? args.k.dim[0] : 0;
  QT_CHECK_GE(args.scratch.elements(),
              AttentionScratchBytes(std::max(args.q.dim[0], packed_keys), heads, head_dim, stream));
  Dispatch<cpu::Attention, cuda::Attention>(stream, args);
}

void SummariseMask(const MaskColumns& columns, std::span<const int32_t> kv_offsets,
                   std::span<MaskTile> tiles) {
  QT_CHECK_GE(static_cast<int64_t>(tiles.size()), MaskTiles(kv_offsets));
  for (size_t s = 0; s + 1 < kv_offsets.size(); ++s) {
    const int64_t first_tile = FirstMaskTile(kv_offsets[s], static_cast<int64_t>(s));
    const int64_t keys = kv_offsets[s + 1] - kv_offsets[s];
    for (int64_t key = 0; key < keys; ++key) {
      const MaskTile column = columns.At(kv_offsets[s] + key);
      MaskTile& tile = tiles[static_cast<size_t>(first_tile + key / kMaskTileKeys)];
      if (key % kMaskTileKeys == 0) tile = column;
      tile.Add(column);
    }
  }
}

int64_t AttentionScratchBytes(int64_t rows, int64_t heads, int64_t head_dim, const Stream& stream) {
  return Dispatch<cpu::AttentionScratchBytes, cuda::AttentionScratchBytes>(stream, rows, heads,
                                                                           head_dim);
}

}  // namespace quintet
