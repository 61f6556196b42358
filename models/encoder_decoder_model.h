// Everything that encoder-decoder families share: the cross-attention cache, the one GEMM that
// projects the encoder's hidden states to the keys and values of all decoder layers, and
// cross-attention of a decoder step. Encoding of packed inputs in slices comes from PackedModel.
//
// A family adds its layers (models/t5.cc is the example), its tensor names (models/weights/t5.cc)
// and its config (models/config/t5.cc). Layers place their norms themselves, so pre-norm and
// post-norm families fit alike. Encoder-only models, which have no decoder layers, belong here too.
//
// Rotary position embedding (FAT5) rotates the keys of the cross-attention cache, so it is applied
// here as well.
//
// Not thread safe, like every Model.
#pragma once

#include "models/packed_model.h"

namespace quintet {

class EncoderDecoderModel : public PackedModel {
 public:
  void ProjectCross(const Tensor& states, int64_t position, absl::Span<const int32_t> slots) final;

 protected:
  EncoderDecoderModel(ModelConfig config, const ModelLimits& limits, ModelWeights weights,
                      const Stream& stream)
      : PackedModel(std::move(config), limits, std::move(weights), stream) {}

  virtual void EncoderLayer(const LayerRows& rows) = 0;
  virtual void DecoderLayer(const LayerRows& rows) = 0;

  void Carve(Carver& carver) override;
  void CarveArrays(Carver& carver) override;

  // Cross-attention of a decoder step: the rows of each group attend to the group's source in the
  // cache. q [rows, I]; returns [rows, I], in place of the queries.
  Tensor CrossAttention(int64_t layer, const Tensor& q);

  // y = x rotated by each row's position, [rows, heads, head_dim]. Only for rotary models. `side`
  // decides the direction of xPos' scaling, which divides keys by the factor that it multiplies
  // queries by. row_offset: as in RotaryArgs.
  enum class Side : int { kQuery = 1, kKeyValue = -1 };
  void Rotate(const Tensor& x, const Tensor& y, const Tensor& positions, Side side,
              const int64_t* row_offset = nullptr);
  // Output tensor for a GEMM whose result will be rotated into y [rows, n]: y itself, or an f32
  // buffer if y is narrower, so that values are rounded only once. Models without rotary: y.
  Tensor Unrotated(const Tensor& y) const {
    if (!rotary() || activations_ == DType::kF32) return y;
    return Tensor::Dense(unrotated_.data, DType::kF32, {y.dim[0], y.dim[1]});
  }

 private:
  void Layer(const LayerRows& rows) final { rows.step ? DecoderLayer(rows) : EncoderLayer(rows); }
  void CheckBatch(const DecodeBatch& batch) const final;

  bool ReadableByOps(const Tensor& states) const;
  int64_t* TakeRowOffsets(int64_t rows);
  Tensor CacheHeads(int64_t rows) const;
  void ProjectCrossRows(const Tensor& states, int64_t position, const int64_t* row_offset);

  // Cache destinations of cross-attention keys and values, in elements (ScatterOutput): the offset
  // of each row's slot, and of each (layer, key or value, head) in a slot's page.
  Tensor cross_row_offsets_;    // [max_encode_tokens] i64, taken piece by piece
  Tensor cross_chunk_offsets_;  // [decoder_layers * 2 * heads] i64
  int64_t cross_rows_used_ = 0;
  int64_t cross_upload_ = 0;  // number of the latest H2D copy of row offsets

  Tensor source_positions_;  // [max_encode_tokens] i32: 0, 1, 2, ..
  Tensor staged_states_;     // [most rows per GEMM, d_model] f32, GPU: copy of states on the host
  Tensor unrotated_;         // [values] f32, see Unrotated
};

}  // namespace quintet
