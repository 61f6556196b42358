#include "models/t5.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"

namespace quintet {
namespace {

class T5Model final : public PackedModel {
 public:
  T5Model(ModelConfig config, const ModelLimits& limits, ModelWeights weights, const Stream& stream)
      : PackedModel(std::move(config), limits, std::move(weights), stream) {}

  void ProjectCross(const Tensor& states, int64_t position,
                    absl::Span<const int32_t> slots) override;

 private:
  void Carve(Carver& carver) override;
  void CarveArrays(Carver& carver) override;
  void EmbedRows(const Tensor& ids, const Tensor& positions, absl::Span<const int32_t> slots,
                 const Tensor& x) override;
  void ProjectRows(const LayerWeights& w, const Tensor& x, const Tensor& positions,
                   const Tensor& qkv, const KvOutput& kv) override;
  void FinishRows(const LayerWeights& w, const LayerWeights* next, const Tensor& attended,
                  const Tensor& x) override;
  void NormRows(const StackWeights& stack, const Tensor& x, const Tensor& y,
                absl::Span<const int32_t> rows) override;

  void CheckBatch(const DecodeBatch& batch) const override;
  void DecoderLayer(int64_t layer, const Tensor& x) override;
  Tensor CrossAttend(int64_t layer, const Tensor& q);
  void FeedForward(const LayerWeights& w, const LayerWeights* next, const Tensor& x);

  // The norm and the product that come after a product which adds to the residual stream.
  struct Next {
    const Tensor& gamma;
    const LinearWeight& w;
  };
  static std::optional<Next> NextOf(const LayerWeights* next) {
    if (next == nullptr) return std::nullopt;
    return Next{next->attention_norm, next->qkv};
  }
  // A norm of a call's residual stream, begun by the product that added to it (NormOutput).
  struct BegunNorm {
    Tensor room, squares_room;  // [most rows, d_model], [most rows, most parts] f32
    Tensor squares;             // of the rows in `room`; undefined: it is not begun
  };
  BegunNorm& BegunOf(const Tensor& x) { return x.data == x_.data ? step_norm_ : encoder_norm_; }
  // x += in W^T, of rows x of the residual stream; begins the norm that comes next where both
  // products can. NormedRows of x is next then.
  void AddRows(const LinearWeight& w, const Tensor& in, const std::optional<Next>& next,
               const Tensor& x);
  // NormedProduct of rows x of the residual stream, or what is left of it.
  void NormedRows(const Tensor& gamma, LinearArgs args);

  bool OnDevice(const Tensor& states) const;
  int64_t* CrossRows(int64_t rows);
  Tensor CrossHeads(int64_t rows) const;
  void ProjectCrossRows(const Tensor& states, int64_t position, const int64_t* row_offset);

  bool rotary() const { return config_.position == PositionEncoding::kRope; }
  // y = x turned. sign: +1 for queries, -1 for keys and values (xPos divides what it multiplied).
  // row_offset as in RotaryArgs.
  void Rotate(const Tensor& x, const Tensor& y, const Tensor& positions, int sign,
              const int64_t* row_offset = nullptr);
  // Where a product writes what will be turned and then be y [rows, n]: y itself, or f32, so that
  // it is rounded once.
  Tensor Unturned(const Tensor& y) const {
    if (!rotary() || activations_ == DType::kF32) return y;
    return Tensor::Dense(unturned_.data, DType::kF32, {y.dim[0], y.dim[1]});
  }

  // Where the source's keys and values go: each row's slot, each head within a slot's page.
  Tensor cross_rows_;    // [max_encode_tokens] i64, the first cross_used_ of them taken
  Tensor cross_chunks_;  // [decoder_layers * 2 * heads] i64
  int64_t cross_used_ = 0, cross_upload_ = 0;  // the latest upload of some of them
  Tensor ascending_;                           // [max_encode_tokens] i32: 0, 1, ..
  Tensor given_states_;  // [most rows at once, d_model] f32 on a device: what the caller kept
  Tensor unturned_;      // [values] f32: room of Unturned
  BegunNorm step_norm_, encoder_norm_;  // apart: steps run between slices of an input
};

void T5Model::Carve(Carver& carver) {
  PackedModel::Carve(carver);
  if (stream_.backend() == Backend::kCpu) return;
  if (config_.has_decoder()) {
    constexpr int64_t kMostGiven = 4096;  // rows that fill a device
    const int64_t given = std::min(limits_.max_encode_tokens, kMostGiven);
    given_states_ = carver.TakeTensor(DType::kF32, {given, config_.d_model});
  }
  if (rotary() && activations_ != DType::kF32) {
    const int64_t cross_row = config_.has_decoder() ? weights_.cross_kv.n() : 0;
    unturned_ =
        carver.TakeTensor(DType::kF32, {std::max(block_rows_ * 3 * config_.inner(), cross_row)});
  }
  // Rows of all that products of halved norms read and write begin on 16-byte boundaries.
  const bool aligned = (config_.d_model | config_.d_ff | config_.head_dim) % 8 == 0;
  const LinearWeight& first = weights_.encoder.layers[0].attention_out;
  if (!aligned || LinearNormParts(first, 1, stream_) == 0) return;
  const auto norm_of = [&](int64_t most_rows) {
    const int64_t rows = std::min(most_rows, kMostNormRows), d = config_.d_model;
    BegunNorm norm;
    norm.room = carver.TakeTensor(activations_, {rows, d});
    norm.squares_room = carver.TakeTensor(DType::kF32, {rows, d / 16});
    return norm;
  };
  encoder_norm_ = norm_of(limits_.max_encode_tokens);
  if (config_.has_decoder()) step_norm_ = norm_of(limits_.max_step_tokens);
}

void T5Model::CarveArrays(Carver& carver) {
  PackedModel::CarveArrays(carver);
  if (!config_.has_decoder()) return;

  const int64_t tokens = limits_.max_encode_tokens;
  const int64_t chunks = config_.decoder_layers * 2 * config_.heads;
  ascending_ = carver.TakeTensor(DType::kI32, {tokens});
  cross_rows_ = carver.TakeTensor(DType::kI64, {tokens});
  cross_chunks_ = carver.TakeTensor(DType::kI64, {chunks});
  if (!ascending_.defined()) return;  // only sizing
  std::iota(ascending_.as<int32_t>(), ascending_.as<int32_t>() + tokens, 0);
  int64_t* chunk = cross_chunks_.as<int64_t>();
  for (int64_t layer = 0; layer < config_.decoder_layers; ++layer) {
    for (const bool value : {false, true}) {
      for (int64_t h = 0; h < config_.heads; ++h) *chunk++ = cache_.ChunkOffset(layer, value, h);
    }
  }
}

void T5Model::Rotate(const Tensor& x, const Tensor& y, const Tensor& positions, int sign,
                     const int64_t* row_offset) {
  Rotary({.x = x,
          .y = y,
          .row_offset = row_offset,
          .positions = positions,
          .base = config_.rope_base,
          .rotary_dim =
              static_cast<int64_t>(static_cast<double>(config_.head_dim) * config_.rope_fraction),
          .interleaved = config_.rope_interleaved,
          .xpos_base = config_.rope_xpos_base,
          .xpos_center = config_.max_positions / 2,
          .xpos_sign = sign},
         stream_);
}

void T5Model::AddRows(const LinearWeight& w, const Tensor& in, const std::optional<Next>& next,
                      const Tensor& x) {
  const int64_t rows = x.dim[0];
  LinearArgs args = {.x = in, .w = &w, .residual = x, .y = x};
  BegunNorm& norm = BegunOf(x);
  const int64_t parts = norm.room.defined() ? LinearNormParts(w, rows, stream_) : 0;
  if (parts > 0 && next.has_value() && LinearTakesSquares(next->w, rows, stream_)) {
    norm.squares = Tensor::Dense(norm.squares_room.data, DType::kF32, {rows, parts});
    args.next_norm = {next->gamma, norm.room.Rows(0, rows), norm.squares};
  }
  Product(args);
}

void T5Model::NormedRows(const Tensor& gamma, LinearArgs args) {
  BegunNorm& norm = BegunOf(args.x);
  if (!norm.squares.defined()) return NormedProduct(gamma, {}, args);
  args.x = norm.room.Rows(0, args.x.dim[0]);
  args.x_squares = std::exchange(norm.squares, {});
  args.norm_eps = config_.norm_eps;
  Product(args);
}

// x += wo(act(wi x)), or wo(act(wi_0 x) * wi_1 x), of the normed x.
void T5Model::FeedForward(const LayerWeights& w, const LayerWeights* next, const Tensor& x) {
  const Tensor hidden = hidden_.Rows(0, x.dim[0]);
  NormedRows(w.ffn_norm, {.x = x, .w = &w.ffn_in, .activation = config_.activation, .y = hidden});
  AddRows(w.ffn_out, hidden, NextOf(next), x);
}

// ---- Pieces of both stacks ----

void T5Model::EmbedRows(const Tensor& ids, const Tensor&, absl::Span<const int32_t> slots,
                        const Tensor& x) {
  BegunOf(x).squares = {};
  Embedding({.ids = ids,
             .chosen = chosen_,
             .table = weights_.embedding,
             .y = x,
             .history = slots.empty() ? Tensor() : history_,
             .slots = slots},
            stream_);
}

void T5Model::ProjectRows(const LayerWeights& w, const Tensor& x, const Tensor& positions,
                          const Tensor& qkv, const KvOutput& kv) {
  const Tensor made = Unturned(qkv);
  NormedRows(w.attention_norm, {.x = x, .w = &w.qkv, .y = made, .kv = kv});
  if (!rotary()) return;
  for (int part = 0; part < 3; ++part) {
    Rotate(HeadsOf(made, part), HeadsOf(qkv, part), positions, part == 0 ? 1 : -1);
  }
}

void T5Model::FinishRows(const LayerWeights& w, const LayerWeights* next, const Tensor& attended,
                         const Tensor& x) {
  AddRows(w.attention_out, attended, Next{w.ffn_norm, w.ffn_in}, x);
  FeedForward(w, next, x);
}

void T5Model::NormRows(const StackWeights& stack, const Tensor& x, const Tensor& y,
                       absl::Span<const int32_t> rows) {
  RmsNorm({.x = x, .gamma = stack.final_norm, .y = y, .eps = config_.norm_eps, .rows = rows},
          stream_);
}

// ---- Keys and values of the source ----

// Rows of the encoder's batch, not a caller's copy; on a CPU copies are as good.
bool T5Model::OnDevice(const Tensor& states) const {
  const char* at = states.as<char>();
  const char* own = encoder_x_.as<char>();
  const bool ours = at >= own && at < own + encoder_x_.elements() * 4;
  return ours || stream_.backend() == Backend::kCpu;
}

// Room for the offsets of `rows` rows. Earlier ones may still be on their way to the device: they
// are written over only when all room is used.
int64_t* T5Model::CrossRows(int64_t rows) {
  if (cross_used_ + rows > limits_.max_encode_tokens) {
    stream_.WaitForUpload(cross_upload_);
    cross_used_ = 0;
  }
  cross_used_ += rows;
  return cross_rows_.as<int64_t>() + cross_used_ - rows;
}

// Where they lie, the heads of all layers, keys then values, as one row.
Tensor T5Model::CrossHeads(int64_t rows) const {
  Tensor heads =
      Tensor::Dense(cache_.data, cache_.dtype, {rows, cross_chunks_.dim[0], config_.head_dim});
  heads.stride[1] = cache_.page_size * cache_.head_dim;
  return heads;
}

void T5Model::ProjectCross(const Tensor& states, int64_t position,
                           absl::Span<const int32_t> slots) {
  QT_CHECK_LE(position + states.dim[0], limits_.max_encode_tokens);
  QT_CHECK(config_.has_decoder());
  QT_CHECK_EQ(static_cast<int64_t>(slots.size()), states.dim[0]);
  for (const int32_t slot : slots) {
    QT_CHECK_GE(slot, 0);
    QT_CHECK_LT(slot, cache_.pages * cache_.page_size);
  }
  int64_t* rows = CrossRows(states.dim[0]);
  for (size_t r = 0; r < slots.size(); ++r) rows[r] = cache_.SlotOffset(slots[r]);
  cross_upload_ = stream_.Upload(rows, static_cast<int64_t>(slots.size()) * 8);
  const bool here = OnDevice(states);
  const int64_t piece = here ? states.dim[0] : given_states_.dim[0];
  for (int64_t begin = 0; begin < states.dim[0]; begin += piece) {
    Tensor x = states.Rows(begin, std::min(begin + piece, states.dim[0]));
    if (!here) {
      const Tensor given = given_states_.Rows(0, x.dim[0]);
      stream_.Write(x.data, given);
      x = given;
    }
    ProjectCrossRows(x, position + begin, rows + begin);
  }
}

// The same of rows where the backend can read them, the first at `position`, which go to the
// offsets `row_offset`.
void T5Model::ProjectCrossRows(const Tensor& states, int64_t position, const int64_t* row_offset) {
  const int64_t rows = states.dim[0], n = weights_.cross_kv.n();
  if (!rotary() || activations_ == DType::kF32) {
    Product({.x = states,
             .w = &weights_.cross_kv,
             .scatter = {.base = cache_.data,
                         .dtype = cache_.dtype,
                         .row_offset = row_offset,
                         .chunk_offset = cross_chunks_.as<int64_t>(),
                         .chunk = config_.head_dim}});
    if (!rotary()) return;
    const Tensor heads = CrossHeads(rows);
    return Rotate(heads, heads, ascending_.Rows(position, position + rows), -1, row_offset);
  }
  // As many at once as there is room for before they are turned.
  const int64_t most = unturned_.dim[0] / n;
  for (int64_t begin = 0; begin < rows; begin += most) {
    const int64_t end = std::min(begin + most, rows);
    const Tensor made = Tensor::Dense(unturned_.data, DType::kF32, {end - begin, n});
    Product({.x = states.Rows(begin, end), .w = &weights_.cross_kv, .y = made});
    Rotate(made.SplitLast(config_.head_dim), CrossHeads(end - begin),
           ascending_.Rows(position + begin, position + end), -1, row_offset + begin);
  }
}

// ---- Decoder ----

void T5Model::CheckBatch(const DecodeBatch& batch) const {
  QT_CHECK(config_.has_decoder());
  QT_CHECK_EQ(batch.group_offsets.size(), batch.source_lens.size() + 1);
  QT_CHECK_EQ(batch.group_offsets.back(), static_cast<int32_t>(batch.kv_lens.size()));
}

void T5Model::DecoderLayer(int64_t layer, const Tensor& x) {
  const LayerWeights& w = weights_.decoder.layers[layer];
  const int64_t rows = x.dim[0];
  const Tensor qkv = qkv_.Rows(0, rows);

  const KvOutput kv = rotary() ? KvOutput{} : KvOnTheWay(w.qkv, layer);
  ProjectRows(w, x, step_.positions(), qkv, kv);
  const Tensor self = SelfAttend(layer, qkv, kv.cache != nullptr, &w.bias, config_.attention_scale);
  AddRows(w.attention_out, self, Next{w.cross_norm, w.cross_q}, x);

  const Tensor q = qkv.Columns(0, config_.inner());
  const Tensor made = Unturned(q);
  NormedRows(w.cross_norm, {.x = x, .w = &w.cross_q, .y = made});
  if (rotary()) {
    const int64_t dim = config_.head_dim;
    Rotate(made.SplitLast(dim), q.SplitLast(dim), step_.positions(), 1);
  }
  const Tensor cross = CrossAttend(layer, q);
  AddRows(w.cross_out, cross, Next{w.ffn_norm, w.ffn_in}, x);

  const bool last = layer + 1 == config_.decoder_layers;
  FeedForward(w, last ? nullptr : &weights_.decoder.layers[layer + 1], x);
}

// Each group's rows attend to its source. In place of the queries q [rows, I].
Tensor T5Model::CrossAttend(int64_t layer, const Tensor& q) {
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

}  // namespace

std::unique_ptr<PackedModel> MakeT5Model(ModelConfig config, const ModelLimits& limits,
                                         ModelWeights weights, const Stream& stream) {
  return std::make_unique<T5Model>(std::move(config), limits, std::move(weights), stream);
}

}  // namespace quintet
