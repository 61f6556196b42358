#include "models/t5.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "models/packed_model.h"

namespace quintet {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

class T5Model final : public PackedModel {
 public:
  T5Model(ModelConfig config, const ModelLimits& limits, ModelWeights weights, const Stream& stream)
      : PackedModel(std::move(config), limits, std::move(weights), stream) {}

  void BeginEncode(absl::Span<const int32_t> tokens, absl::Span<const int32_t> offsets) override;
  bool EncodeSlice(int64_t work) override;
  Tensor EncoderStates() const override;
  Tensor HostEncoderStates() const override;
  void ProjectCross(const Tensor& states, int64_t position,
                    absl::Span<const int32_t> slots) override;

 private:
  // Every layer of the encoder runs in two sweeps over blocks of rows, since attention needs all
  // keys and values first.
  enum class Sweep : uint8_t { kProject, kFinish };

  void Carve(Carver& carver) override;
  void CarveArrays(Carver& carver) override;
  bool EncodeRecorded();
  void ProjectEncoderRows(const LayerWeights& w, int64_t begin, int64_t end);
  void FinishEncoderRows(const LayerWeights& w, int64_t begin, int64_t end);
  void EncoderAttention(const LayerWeights& w, int64_t begin, int64_t end);
  int64_t RowCost() const;
  int64_t SequenceOf(int64_t row) const;

  void CheckBatch(const DecodeBatch& batch) const override;
  void Forward() override;
  void DecoderLayer(int64_t layer, const Tensor& x);
  Tensor CrossAttend(int64_t layer, const Tensor& q);
  void FeedForward(const LayerWeights& w, const Tensor& x);

  Tensor StatesHere(const Tensor& states, int64_t position);
  int64_t* CrossRows(int64_t rows);

  bool rotary() const { return config_.position == PositionEncoding::kRope; }
  // sign: +1 for queries, -1 for keys and values (xPos divides what it multiplied). row_offset as
  // in RotaryArgs.
  void Rotate(const Tensor& x, const Tensor& positions, int sign,
              const int64_t* row_offset = nullptr);

  // The encoder's batch, kept between slices.
  Tensor encoder_host_;       // [max_encode_tokens, d_model] f32, mirrored: the host's side
  Tensor encoder_x_;          // its twin: residual stream, at last the states
  Tensor encoder_qkv_;        // [max_encode_tokens, 3 I]
  Tensor encoder_tokens_;     // [max_encode_tokens] i32
  Tensor encoder_positions_;  // [max_encode_tokens] i32
  Tensor encoder_offsets_;    // [max_encode_tokens + 1] i32
  int64_t encoder_sequences_ = 0;
  int64_t encoder_rows_ = 0;
  // Where the next slice goes on; layer_ == encoder_layers: complete.
  int64_t layer_ = 0, row_ = 0;
  Sweep sweep_ = Sweep::kProject;

  // Encodings recorded on a device, by the offsets of their sequences, as packed_model.h records
  // steps: queueing a hundred kernels one by one takes longer than a short input's work.
  std::map<std::vector<int32_t>, RecordedStep> recorded_encodes_;

  // Query offsets of the sequences in a block of encoder rows, and the position of each one's first
  // query there.
  Tensor block_offsets_;    // [kBlockRows + 1] i32
  Tensor block_positions_;  // [kBlockRows] i32
  // Where the source's keys and values go: each row's slot, each head within a slot's page.
  Tensor cross_rows_;    // [max_encode_tokens] i64, the first cross_used_ of them taken
  Tensor cross_chunks_;  // [decoder_layers * 2 * heads] i64
  int64_t cross_used_ = 0;
  Tensor ascending_;     // [max_encode_tokens] i32: 0, 1, ..
  Tensor given_states_;  // [max_encode_tokens, d_model] f32 on a device: what the caller kept
};

void T5Model::Carve(Carver& carver) {
  PackedModel::Carve(carver);
  const int64_t tokens = limits_.max_encode_tokens;
  encoder_qkv_ = carver.TakeTensor(activations_, {tokens, 3 * config_.inner()});
  if (!config_.has_decoder()) return;
  if (stream_.backend() != Backend::kCpu) {
    given_states_ = carver.TakeTensor(DType::kF32, {tokens, config_.d_model});
  }
}

void T5Model::CarveArrays(Carver& carver) {
  const int64_t tokens = limits_.max_encode_tokens;
  encoder_host_ = carver.TakeTensor(DType::kF32, {tokens, config_.d_model});
  if (encoder_host_.defined()) encoder_x_ = stream_.Twin(encoder_host_);
  encoder_tokens_ = carver.TakeTensor(DType::kI32, {tokens});
  encoder_positions_ = carver.TakeTensor(DType::kI32, {tokens});
  encoder_offsets_ = carver.TakeTensor(DType::kI32, {tokens + 1});
  block_offsets_ = carver.TakeTensor(DType::kI32, {kBlockRows + 1});
  block_positions_ = carver.TakeTensor(DType::kI32, {kBlockRows});
  if (!config_.has_decoder()) return;

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

void T5Model::Rotate(const Tensor& x, const Tensor& positions, int sign,
                     const int64_t* row_offset) {
  Rotary({.x = x,
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

// x += wo(act(wi x)), or wo(act(wi_0 x) * wi_1 x), of the normed x.
void T5Model::FeedForward(const LayerWeights& w, const Tensor& x) {
  const Tensor hidden = hidden_.Rows(0, x.dim[0]);
  NormedProduct(w.ffn_norm, {},
                {.x = x, .w = &w.ffn_in, .activation = config_.activation, .y = hidden});
  Product({.x = hidden, .w = &w.ffn_out, .residual = x, .y = x});
}

// ---- Encoder ----

void T5Model::BeginEncode(absl::Span<const int32_t> tokens, absl::Span<const int32_t> offsets) {
  QT_CHECK(config_.has_encoder());
  QT_CHECK_GE(offsets.size(), size_t{2});
  QT_CHECK_EQ(offsets.front(), 0);
  QT_CHECK_EQ(offsets.back(), static_cast<int32_t>(tokens.size()));
  QT_CHECK_LE(static_cast<int64_t>(tokens.size()), limits_.max_encode_tokens);
  encoder_rows_ = static_cast<int64_t>(tokens.size());
  encoder_sequences_ = static_cast<int64_t>(offsets.size()) - 1;
  stream_.WaitForUploads();
  for (int64_t s = 0; s < encoder_sequences_; ++s) {
    QT_CHECK_LT(offsets[s], offsets[s + 1]);
    int32_t* positions = encoder_positions_.as<int32_t>();
    std::iota(positions + offsets[s], positions + offsets[s + 1], 0);
  }
  std::copy(tokens.begin(), tokens.end(), encoder_tokens_.as<int32_t>());
  std::copy(offsets.begin(), offsets.end(), encoder_offsets_.as<int32_t>());
  stream_.Upload(encoder_tokens_.data, encoder_rows_ * 4);
  stream_.Upload(encoder_positions_.data, encoder_rows_ * 4);
  stream_.Upload(encoder_offsets_.data, (encoder_sequences_ + 1) * 4);
  layer_ = row_ = 0;
  sweep_ = Sweep::kProject;
}

// Multiply-adds of one token in a layer's products: the unit of work.
int64_t T5Model::RowCost() const {
  const LayerWeights& w = weights_.encoder.layers[0];
  return w.qkv.n() * w.qkv.k() + w.attention_out.n() * w.attention_out.k() +
         w.ffn_in.n() * w.ffn_in.k() + w.ffn_out.n() * w.ffn_out.k();
}

// Index of the sequence of the encoder's batch that holds `row`.
int64_t T5Model::SequenceOf(int64_t row) const {
  const int32_t* offsets = encoder_offsets_.as<int32_t>();
  return std::upper_bound(offsets, offsets + encoder_sequences_, row) - offsets - 1;
}

// The whole of a short batch by one replay, once its lengths have been seen before.
bool T5Model::EncodeRecorded() {
  constexpr int64_t kMostRows = 1024;
  constexpr size_t kMostGraphs = 128;
  if (stream_.backend() == Backend::kCpu || encoder_rows_ > kMostRows) return false;
  const int32_t* offsets = encoder_offsets_.as<int32_t>();
  std::vector<int32_t> lengths(offsets, offsets + encoder_sequences_ + 1);
  if (recorded_encodes_.size() >= kMostGraphs) recorded_encodes_.clear();
  RecordedStep& step = recorded_encodes_[std::move(lengths)];
  if (step.seen && step.graph == nullptr) {
    step.graph = stream_.device().Record([this] {
      for (layer_ = 0; layer_ < config_.encoder_layers; ++layer_) {
        const LayerWeights& w = weights_.encoder.layers[layer_];
        ProjectEncoderRows(w, 0, encoder_rows_);
        FinishEncoderRows(w, 0, encoder_rows_);
      }
    });
    layer_ = 0;
  }
  step.seen = true;
  if (step.graph == nullptr) return false;
  stream_.device().Replay(*step.graph);
  layer_ = config_.encoder_layers;
  return true;
}

bool T5Model::EncodeSlice(int64_t work) {
  QT_CHECK_GT(encoder_rows_, 0);
  if (layer_ == 0 && row_ == 0 && sweep_ == Sweep::kProject && EncodeRecorded()) return true;
  // Few rows read all weights for little.
  const double max_rows = static_cast<double>(EncodeBlockRows());
  const double min_rows = stream_.backend() == Backend::kCpu ? 32 : max_rows;
  const int64_t unit = RowCost();
  double budget = static_cast<double>(work) * static_cast<double>(unit);
  while (layer_ < config_.encoder_layers && budget > 0) {
    const LayerWeights& w = weights_.encoder.layers[layer_];
    int64_t cost = w.qkv.n() * w.qkv.k();
    if (sweep_ == Sweep::kFinish) {
      const int32_t* sequence = encoder_offsets_.as<int32_t>() + SequenceOf(row_);
      cost = unit - cost + 2 * config_.inner() * (sequence[1] - sequence[0]);
    }
    const double affordable = std::clamp(budget / static_cast<double>(cost), min_rows, max_rows);
    // Blocks of one size rather than full ones and a small rest.
    const int64_t left = encoder_rows_ - row_;
    const int64_t blocks = CeilDiv(left, static_cast<int64_t>(affordable));
    const int64_t rows = CeilDiv(left, blocks);
    if (sweep_ == Sweep::kProject) {
      ProjectEncoderRows(w, row_, row_ + rows);
    } else {
      FinishEncoderRows(w, row_, row_ + rows);
    }
    budget -= static_cast<double>(rows * cost);
    row_ += rows;
    if (row_ < encoder_rows_) continue;
    row_ = 0;
    if (sweep_ == Sweep::kFinish) Observe(false, layer_++, encoder_x_.Rows(0, encoder_rows_));
    sweep_ = sweep_ == Sweep::kProject ? Sweep::kFinish : Sweep::kProject;
  }
  return layer_ == config_.encoder_layers;
}

// First sweep of a layer: queries, keys and values.
void T5Model::ProjectEncoderRows(const LayerWeights& w, int64_t begin, int64_t end) {
  const Tensor x = encoder_x_.Rows(begin, end);
  const Tensor qkv = encoder_qkv_.Rows(begin, end);
  if (layer_ == 0) {
    Embedding({.ids = encoder_tokens_.Rows(begin, end), .table = weights_.embedding, .y = x},
              stream_);
  }
  NormedProduct(w.attention_norm, {}, {.x = x, .w = &w.qkv, .y = qkv});
  if (rotary()) {
    const Tensor positions = encoder_positions_.Rows(begin, end);
    Rotate(HeadsOf(qkv, 0), positions, 1);
    Rotate(HeadsOf(qkv, 1), positions, -1);
    Rotate(HeadsOf(qkv, 2), positions, -1);
  }
}

// Second sweep: everything after the keys and values of all rows are there.
void T5Model::FinishEncoderRows(const LayerWeights& w, int64_t begin, int64_t end) {
  const Tensor x = encoder_x_.Rows(begin, end);
  EncoderAttention(w, begin, end);
  Product({.x = encoder_qkv_.Rows(begin, end).Columns(0, config_.inner()),
           .w = &w.attention_out,
           .residual = x,
           .y = x});
  FeedForward(w, x);
  if (layer_ + 1 == config_.encoder_layers) {
    RmsNorm({.x = x, .gamma = weights_.encoder.final_norm, .y = x, .eps = config_.norm_eps},
            stream_);
  }
}

// Rows [begin, end), which may be the end of one sequence, whole ones and the beginning of another,
// attend to all keys of their sequence. In place of the queries.
void T5Model::EncoderAttention(const LayerWeights& w, int64_t begin, int64_t end) {
  const Tensor qkv = encoder_qkv_.Rows(0, encoder_rows_);
  const Tensor q = HeadsOf(qkv.Rows(begin, end), 0);
  AttentionArgs args = {.q = q,
                        .out = q,
                        .k = HeadsOf(qkv, 1),
                        .v = HeadsOf(qkv, 2),
                        .bias = &w.bias,
                        .scale = config_.attention_scale,
                        .scratch = scratch_};
  const int32_t* offsets = encoder_offsets_.as<int32_t>();
  if (end - begin == encoder_rows_) {
    args.q_offsets = absl::MakeConstSpan(offsets, static_cast<size_t>(encoder_sequences_) + 1);
    args.kv_offsets = args.q_offsets;
    Attention(args, stream_);
    return;
  }
  const int64_t first = SequenceOf(begin);
  int32_t* block_offsets = block_offsets_.as<int32_t>();
  int32_t* block_positions = block_positions_.as<int32_t>();
  size_t sequences = 0;
  block_offsets[0] = 0;
  for (int64_t s = first; s < encoder_sequences_ && offsets[s] < end; ++s, ++sequences) {
    block_positions[sequences] = static_cast<int32_t>(std::max<int64_t>(begin - offsets[s], 0));
    block_offsets[sequences + 1] =
        static_cast<int32_t>(std::min<int64_t>(offsets[s + 1], end) - begin);
  }
  args.q_offsets = absl::MakeConstSpan(block_offsets, sequences + 1);
  args.kv_offsets = absl::MakeConstSpan(offsets + first, sequences + 1);
  args.q_positions = absl::MakeConstSpan(block_positions, sequences);
  Attention(args, stream_);
}

Tensor T5Model::EncoderStates() const {
  QT_CHECK_EQ(layer_, config_.encoder_layers);
  return encoder_x_.Rows(0, encoder_rows_);
}

Tensor T5Model::HostEncoderStates() const {
  QT_CHECK_EQ(layer_, config_.encoder_layers);
  return encoder_host_.Rows(0, encoder_rows_);
}

// ---- Keys and values of the source ----

// Rows of the encoder's batch as they are; a caller's copy is brought to the device first.
Tensor T5Model::StatesHere(const Tensor& states, int64_t position) {
  const char* at = states.as<char>();
  const char* own = encoder_x_.as<char>();
  const bool ours = at >= own && at < own + encoder_x_.elements() * 4;
  if (ours || stream_.backend() == Backend::kCpu) return states;
  const Tensor here = given_states_.Rows(position, position + states.dim[0]);
  stream_.Write(states.data, here);
  return here;
}

// Room for the offsets of `rows` rows. Earlier ones may still be on their way to the device: they
// are written over only when all room is used.
int64_t* T5Model::CrossRows(int64_t rows) {
  if (cross_used_ + rows > limits_.max_encode_tokens) {
    stream_.WaitForUploads();
    cross_used_ = 0;
  }
  cross_used_ += rows;
  return cross_rows_.as<int64_t>() + cross_used_ - rows;
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
  stream_.Upload(rows, static_cast<int64_t>(slots.size()) * 8);
  Product({.x = StatesHere(states, position),
           .w = &weights_.cross_kv,
           .scatter = {.base = cache_.data,
                       .dtype = cache_.dtype,
                       .row_offset = rows,
                       .chunk_offset = cross_chunks_.as<int64_t>(),
                       .chunk = config_.head_dim}});
  if (!rotary()) return;
  // Where they lie, the heads of all layers, keys then values, as one row.
  Tensor heads = Tensor::Dense(cache_.data, cache_.dtype,
                               {states.dim[0], cross_chunks_.dim[0], config_.head_dim});
  heads.stride[1] = cache_.page_size * cache_.head_dim;
  Rotate(heads, ascending_.Rows(position, position + states.dim[0]), -1, rows);
}

// ---- Decoder ----

void T5Model::CheckBatch(const DecodeBatch& batch) const {
  QT_CHECK(config_.has_decoder());
  QT_CHECK_EQ(batch.group_offsets.size(), batch.source_lens.size() + 1);
  QT_CHECK_EQ(batch.group_offsets.back(), static_cast<int32_t>(batch.kv_lens.size()));
}

void T5Model::Forward() {
  const Tensor x = x_.Rows(0, step_.tokens().dim[0]);
  Embedding({.ids = step_.tokens(), .chosen = chosen_, .table = weights_.embedding, .y = x},
            stream_);
  for (int64_t layer = 0; layer < config_.decoder_layers; ++layer) {
    DecoderLayer(layer, x);
    Observe(true, layer, x);
  }
  const Tensor states = WantedStates();
  if (states.dim[0] == 0) return;
  RmsNorm({.x = x,
           .gamma = weights_.decoder.final_norm,
           .y = states,
           .eps = config_.norm_eps,
           .rows = step_.batch().wanted},
          stream_);
}

void T5Model::DecoderLayer(int64_t layer, const Tensor& x) {
  const LayerWeights& w = weights_.decoder.layers[layer];
  const int64_t rows = x.dim[0];
  const Tensor qkv = qkv_.Rows(0, rows);

  const KvOutput kv = rotary() ? KvOutput{} : KvOnTheWay(w.qkv, layer);
  NormedProduct(w.attention_norm, {}, {.x = x, .w = &w.qkv, .y = qkv, .kv = kv});
  if (rotary()) {
    Rotate(HeadsOf(qkv, 0), step_.positions(), 1);
    Rotate(HeadsOf(qkv, 1), step_.positions(), -1);
    Rotate(HeadsOf(qkv, 2), step_.positions(), -1);
  }
  const Tensor self =
      SelfAttend(layer, qkv, kv.cache != nullptr, &w.bias, config_.attention_scale);
  Product({.x = self, .w = &w.attention_out, .residual = x, .y = x});

  const Tensor q = qkv.Columns(0, config_.inner());
  NormedProduct(w.cross_norm, {}, {.x = x, .w = &w.cross_q, .y = q});
  if (rotary()) Rotate(q.SplitLast(config_.head_dim), step_.positions(), 1);
  const Tensor cross = CrossAttend(layer, q);
  Product({.x = cross, .w = &w.cross_out, .residual = x, .y = x});

  FeedForward(w, x);
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
             .scale = config_.attention_scale,
             .scratch = scratch_},
            stream_);
  return q;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewT5Model(ModelConfig config, const ModelLimits& limits,
                                                  ModelWeights weights, const Stream& stream) {
  auto model = std::make_unique<T5Model>(std::move(config), limits, std::move(weights), stream);
  absl::Status status = model->Allocate();
  if (!status.ok()) return status;
  return model;
}

absl::StatusOr<ModelMemory> MeasureT5Model(ModelConfig config, const ModelLimits& limits,
                                           ModelWeights weights, const Stream& stream) {
  T5Model model(std::move(config), limits, std::move(weights), stream);
  if (absl::Status status = model.Measure(); !status.ok()) return status;
  return model.memory();
}

}  // namespace quintet
