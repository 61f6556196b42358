#include "models/encoder_decoder_model.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/ops/rotary.h"

namespace quintet {

void EncoderDecoderModel::Carve(Carver& carver) {
  PackedModel::Carve(carver);
  if (stream_.backend() == Backend::kCpu) return;
  if (config_.has_decoder()) {
    constexpr int64_t kMaxStagedRows = 4096;  // enough rows to fill a device
    const int64_t rows = std::min(limits_.max_encode_tokens, kMaxStagedRows);
    staged_states_ = carver.TakeTensor(DType::kF32, {rows, config_.d_model});
  }
  const bool adds_before_rounding = cache_.dtype == DType::kF8 && adapter_slot_count() > 0;
  if ((rotary() && activations_ != DType::kF32) || adds_before_rounding) {
    const int64_t cross_row = config_.has_decoder() ? weights_.cross_kv.n() : 0;
    unrotated_ =
        carver.TakeTensor(DType::kF32, {std::max(block_rows_ * 3 * config_.inner(), cross_row)});
  }
}

void EncoderDecoderModel::CarveArrays(Carver& carver) {
  PackedModel::CarveArrays(carver);
  if (!config_.has_decoder()) return;

  const int64_t tokens = limits_.max_encode_tokens;
  const int64_t chunks = config_.decoder_layers * 2 * config_.heads;
  source_positions_ = carver.TakeTensor(DType::kI32, {tokens});
  cross_row_offsets_ = carver.TakeTensor(DType::kI64, {tokens});
  if (adapter_slot_count() > 0) cross_adapters_ = carver.TakeTensor(DType::kI32, {tokens});
  cross_chunk_offsets_ = carver.TakeTensor(DType::kI64, {chunks});
  if (!source_positions_.defined()) return;  // null base: only the sizes are needed
  std::iota(source_positions_.as<int32_t>(), source_positions_.as<int32_t>() + tokens, 0);
  int64_t* chunk = cross_chunk_offsets_.as<int64_t>();
  for (int64_t layer = 0; layer < config_.decoder_layers; ++layer) {
    for (const bool value : {false, true}) {
      for (int64_t h = 0; h < config_.heads; ++h) *chunk++ = cache_.ChunkOffset(layer, value, h);
    }
  }
}

void EncoderDecoderModel::CheckBatch(const DecodeBatch& batch) const {
  QT_CHECK(config_.has_decoder());
  QT_CHECK_EQ(batch.group_offsets.size(), batch.source_lens.size() + 1);
  QT_CHECK_EQ(batch.group_offsets.back(), static_cast<int32_t>(batch.kv_lens.size()));
}

void EncoderDecoderModel::Rotate(const Tensor& x, const Tensor& y, const Tensor& positions,
                                 Side side, const int64_t* row_offset) {
  const double rotated = rotary() ? config_.rope_fraction : 0.0;
  Rotary({.x = x,
          .y = y,
          .row_offset = row_offset,
          .positions = positions,
          .base = config_.rope_base,
          .rotary_dim = static_cast<int64_t>(static_cast<double>(config_.head_dim) * rotated),
          .interleaved = config_.rope_interleaved,
          .xpos_base = config_.rope_xpos_base,
          .xpos_center = config_.max_positions / 2,
          .xpos_sign = static_cast<int>(side)},
         stream_);
}

Tensor EncoderDecoderModel::CrossAttention(int64_t layer, const Tensor& q) {
  const DecodeBatch& batch = step_.batch();
  const Tensor heads = q.SplitLast(config_.head_dim);
  Attention({.q = heads,
             .out = heads,
             .q_offsets = step_.group_offsets(),
             .cache = &cache_,
             .layer = layer,
             .slots = batch.source_slots,
             .slots_stride = batch.source_slots_stride,
             .kv_lens = batch.source_lens,
             .fresh = FreshKeys::kNone,
             .scale = config_.attention_scale,
             .scratch = scratch_},
            stream_);
  return q;
}

// ---- Projection of the encoder's hidden states to cross-attention keys and values ----

// Returns whether ops can read `states` directly. On a GPU this is true for rows of encoder_x_,
// which is device memory, and false for a caller's copy in host memory. On a CPU it is always true.
bool EncoderDecoderModel::ReadableByOps(const Tensor& states) const {
  const char* data = states.as<char>();
  const char* own = encoder_x_.as<char>();
  const bool is_own = data >= own && data < own + encoder_x_.elements() * 4;
  return is_own || stream_.backend() == Backend::kCpu;
}

// Reserves the next `rows` elements of cross_row_offsets_ (and of cross_adapters_) and returns the
// index of the first. Earlier elements stay untouched, as their H2D copies may be in flight. If too
// few elements are left, waits for these copies and starts again at index 0.
int64_t EncoderDecoderModel::TakeCrossRows(int64_t rows) {
  if (cross_rows_used_ + rows > limits_.max_encode_tokens) {
    stream_.WaitForH2D(cross_upload_);
    cross_rows_used_ = 0;
  }
  return std::exchange(cross_rows_used_, cross_rows_used_ + rows);
}

// Returns the KV cache as a tensor [rows, decoder_layers * 2 * heads, head_dim] for Rotary. The row
// stride of the tensor is not used: Rotary finds each row by RotaryArgs::row_offset. Heads are
// ordered by layer; in a layer keys come before values.
Tensor EncoderDecoderModel::CacheHeads(int64_t rows) const {
  Tensor heads = Tensor::Dense(cache_.data, cache_.dtype,
                               {rows, cross_chunk_offsets_.dim[0], config_.head_dim});
  heads.stride[1] = cache_.page_size * cache_.head_dim;
  return heads;
}

void EncoderDecoderModel::ProjectCross(const Tensor& states, int64_t position,
                                       std::span<const int32_t> slots,
                                       std::span<const int32_t> adapters) {
  const int64_t rows = states.dim[0];
  QT_CHECK_LE(position + rows, limits_.max_encode_tokens);
  QT_CHECK(config_.has_decoder());
  QT_CHECK_EQ(static_cast<int64_t>(slots.size()), rows);
  QT_CHECK(adapters.empty() || adapters.size() == slots.size());
  for (const int32_t slot : slots) {
    QT_CHECK_GE(slot, 0);
    QT_CHECK_LT(slot, cache_.pages * cache_.page_size);
  }
  const int64_t first = TakeCrossRows(rows);
  int64_t* const row_offset = cross_row_offsets_.as<int64_t>() + first;
  for (size_t r = 0; r < slots.size(); ++r) row_offset[r] = cache_.SlotOffset(slots[r]);
  cross_upload_ = stream_.CopyH2D(row_offset, rows * 8);
  std::span<const int32_t> row_adapters;
  const bool merged = Merged(CommonAdapter(adapters));
  for (const int32_t adapter : adapters) {
    QT_CHECK(-1 <= adapter && adapter < adapter_slot_count());
    if (adapter < 0 || merged || !row_adapters.empty()) continue;
    int32_t* const copy = cross_adapters_.as<int32_t>() + first;
    std::copy(adapters.begin(), adapters.end(), copy);
    cross_upload_ = stream_.CopyH2D(copy, rows * 4);
    row_adapters = {copy, slots.size()};
  }
  use_merged_ = merged;
  const bool readable = ReadableByOps(states);
  const int64_t piece = readable ? rows : staged_states_.dim[0];
  for (int64_t begin = 0; begin < rows; begin += piece) {
    Tensor x = states.Rows(begin, std::min(begin + piece, rows));
    if (!readable) {
      const Tensor staged = staged_states_.Rows(0, x.dim[0]);
      stream_.Write(x.data, staged);
      x = staged;
    }
    ProjectCrossRows(x, position + begin, row_offset + begin,
                     row_adapters.empty() ? row_adapters : row_adapters.subspan(begin, x.dim[0]));
  }
  use_merged_ = false;
}

// Projects `states` to cross-attention keys and values; ops must be able to read `states`.
// `position` is the position of the first row in its sequence. Row r of the result is written to
// the KV cache, starting at the cache's element row_offset[r]. `adapters` [rows] is pinned, or
// empty if no row has one.
void EncoderDecoderModel::ProjectCrossRows(const Tensor& states, int64_t position,
                                           const int64_t* row_offset,
                                           std::span<const int32_t> adapters) {
  const int64_t rows = states.dim[0], n = weights_.cross_kv.n();
  const bool rounds_last = rotary() || (cache_.dtype == DType::kF8 && !adapters.empty());
  if (!rounds_last || activations_ == DType::kF32) {
    row_adapters_ = adapters;
    Gemm({.x = states,
          .w = &weights_.cross_kv,
          .scatter = {.base = cache_.data,
                      .dtype = cache_.dtype,
                      .row_offset = row_offset,
                      .chunk_offset = cross_chunk_offsets_.as<int64_t>(),
                      .chunk = config_.head_dim}});
    row_adapters_ = {};
    if (!rotary()) return;
    const Tensor heads = CacheHeads(rows);
    Rotate(heads, heads, source_positions_.Rows(position, position + rows), Side::kKeyValue,
           row_offset);
    return;
  }
  // The GEMM writes f32 keys and values to the buffer unrotated_, max_rows rows at a time. Rotate
  // reads them there, rotates them if the model is rotary, and writes the result to the KV cache.
  const int64_t max_rows = unrotated_.dim[0] / n;
  for (int64_t begin = 0; begin < rows; begin += max_rows) {
    const int64_t end = std::min(begin + max_rows, rows);
    const Tensor kv = Tensor::Dense(unrotated_.data, DType::kF32, {end - begin, n});
    if (!adapters.empty()) row_adapters_ = adapters.subspan(begin, end - begin);
    Gemm({.x = states.Rows(begin, end), .w = &weights_.cross_kv, .y = kv});
    row_adapters_ = {};
    Rotate(kv.SplitLast(config_.head_dim), CacheHeads(end - begin),
           source_positions_.Rows(position + begin, position + end), Side::kKeyValue,
           row_offset + begin);
  }
}

}  // namespace quintet
