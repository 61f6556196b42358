// Everything that encoder-decoder families share: the cross-attention part of the KV cache, the one
// GEMM that projects the encoder's hidden states to the keys and values of all decoder layers, and
// cross-attention of a decoder step. Encoding of packed inputs in slices comes from PackedModel.
//
// A new family adds its layers (models/t5.cc is the example), its tensor names
// (models/weights/t5.cc) and its config (models/config/t5.cc). The layers decide where their norms
// are, so pre-norm and post-norm families are both possible. Encoder-only models, which have no
// decoder layers, are also subclasses of this class.
//
// Rotary position embedding (FAT5) is implemented here. FAT5 rotates values as well as keys, both
// in self-attention and in cross-attention: the KV cache holds them already rotated.
//
// Not thread safe, like every Model.
#pragma once

#include <span>

#include "kernels/base/carver.h"
#include "models/packed_model.h"

namespace quintet {

class EncoderDecoderModel : public PackedModel {
 public:
  void ProjectCross(const Tensor& states, int64_t position, std::span<const int32_t> slots,
                    std::span<const int32_t> adapters) final;

 protected:
  EncoderDecoderModel(ModelConfig config, const ModelLimits& limits, SharedWeights weights,
                      const Stream& stream)
      : PackedModel(std::move(config), limits, std::move(weights), stream) {}

  virtual void EncoderLayer(const LayerRows& rows) = 0;
  virtual void DecoderLayer(const LayerRows& rows) = 0;

  void Carve(Carver& carver) override;
  void CarveArrays(Carver& carver) override;

  // Cross-attention of a decoder step: the rows of each group (DecodeBatch) attend to the cached
  // keys and values of the group's encoder input. The result overwrites q [rows, heads * head_dim]
  // and is returned.
  Tensor CrossAttention(int64_t layer, const Tensor& q);

  // Says whether Rotate is applied to queries, or to keys and values. With xPos the two differ:
  // queries are also multiplied by a factor, keys and values are divided by it.
  enum class Side : int { kQuery = 1, kKeyValue = -1 };
  // y = x rotated by each row's position (RoPE); both [rows, heads, head_dim]. Only for rotary
  // models. If row_offset is not null, y is the KV cache, and row r of y begins at the cache's
  // element row_offset[r]; if it is null, y's row stride gives the beginning of its rows.
  void Rotate(const Tensor& x, const Tensor& y, const Tensor& positions, Side side,
              const int64_t* row_offset = nullptr);
  // Output tensor for a GEMM whose result will be rotated into y [rows, n]. Returns an f32 buffer
  // if the model is rotary and y is bf16 or f16, so that values are rounded only once; else y.
  Tensor Unrotated(const Tensor& y) const {
    if (!rotary() || activations_ == DType::kF32) return y;
    return Tensor::Dense(unrotated_.data, DType::kF32, {y.dim[0], y.dim[1]});
  }

 private:
  void Layer(const LayerRows& rows) final { rows.step ? DecoderLayer(rows) : EncoderLayer(rows); }
  void CheckBatch(const DecodeBatch& batch) const final;

  bool ReadableByOps(const Tensor& states) const;
  int64_t TakeCrossRows(int64_t rows);
  Tensor CacheHeads(int64_t rows) const;
  void ProjectCrossRows(const Tensor& states, int64_t position, const int64_t* row_offset,
                        std::span<const int32_t> adapters);

  // Where the cross-attention keys and values go in the KV cache (ScatterOutput). Element (r, c) of
  // the GEMM's result goes to element row_offset + chunk_offset + c % head_dim of the cache.
  // row_offset is cross_row_offsets_[r] and depends on the row's slot. chunk_offset is
  // cross_chunk_offsets_[c / head_dim], one per (layer, key or value, head).
  Tensor cross_row_offsets_;    // [max_encode_tokens] i64, used as a ring
  Tensor cross_chunk_offsets_;  // [decoder_layers * 2 * heads] i64
  Tensor cross_adapters_;       // [max_encode_tokens] i32, of the same rows; if there are adapters
  int64_t cross_rows_used_ = 0;
  int64_t cross_upload_ = 0;  // number of the latest H2D copy of these two

  Tensor source_positions_;  // [max_encode_tokens] i32: 0, 1, 2, ..
  Tensor staged_states_;     // [most rows per GEMM, d_model] f32, GPU: copy of states on the host
  // f32 buffer of Unrotated, and for cross keys and values that are rotated or get LoRA terms
  // before they are rounded to the type of the cache.
  Tensor unrotated_;
};

}  // namespace quintet
