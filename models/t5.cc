#include "models/t5.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "kernels/base/carver.h"
#include "kernels/linear/linear.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/norm.h"
#include "models/encoder_decoder_model.h"

namespace quintet {
namespace {

// Pre-norm layers without biases. Each sublayer adds its result to the residual stream x; norm is
// RMSNorm:
//   self-attention     x += Wo attention(Wqkv norm(x)); causal in the decoder
//   cross-attention    x += Wco attention(Wcq norm(x), K and V of the encoder); decoder only
//   feed-forward       x += Wout act(Win norm(x))
// Gated feed-forward layers: x += Wout (act(Wgate norm(x)) * Wup norm(x)).
class T5Model final : public EncoderDecoderModel {
 public:
  T5Model(ModelConfig config, const ModelLimits& limits, SharedWeights weights,
          const Stream& stream)
      : EncoderDecoderModel(std::move(config), limits, std::move(weights), stream) {}

 private:
  void Carve(Carver& carver) override;
  void Embed(const EmbedRows& rows) override;
  void EncoderLayer(const LayerRows& rows) override;
  void DecoderLayer(const LayerRows& rows) override;
  void FinalNorm(const StackWeights& stack, const Tensor& x, const Tensor& y,
                 std::span<const int32_t> rows) override;

  // ---- Split norms (NormOutput) ----
  // Between two sublayers, one GEMM adds to x and the next GEMM reads norm(x). On a GPU, for few
  // rows, the norm needs no pass of its own over x: the first GEMM also writes x * gamma and sums
  // of x^2, and the second GEMM divides its result by sqrt(mean(x^2) + eps). Whether two GEMMs can
  // do this depends only on their weights, the number of rows and whether a row has an adapter.
  // SplitNorm decides it anew for every call; no state is kept.

  // Buffers for norms that are split between two GEMMs: the first GEMM writes them, the second
  // reads them. The encoder and the decoder have separate buffers, because decoder steps run
  // between the slices of an input batch. If the tensors are undefined (Tensor::defined() is
  // false), no norm of this model is ever split.
  struct SplitNormBuffers {
    Tensor scaled;   // [rows, d_model] of type activations_: x * gamma
    Tensor squares;  // [rows, max parts] f32: sums of x^2
  };
  // The residual stream of one layer call, and the buffers for norms that are split between two
  // GEMMs. The encoder has one set of these buffers, the decoder another.
  struct Residual {
    Tensor x;  // [rows, d_model] f32
    const SplitNormBuffers& buffers;
  };
  // The norm that follows an addition to the residual stream: the norm's weight, and the GEMM that
  // reads the norm's result.
  struct NextNorm {
    const Tensor& gamma;         // [d_model]
    const WeightView& consumer;  // [n, d_model]
  };
  // norm(x) as the input of a GEMM. In a split norm, the GEMM that added to x has already written
  // the product x * gamma and partial sums of x^2 to `split`. If `split` is unset, the norm is not
  // split, and norm(x) must still be computed from x and gamma.
  struct NormedInput {
    Tensor x, gamma;
    NormOutput split;  // from the GEMM that added to x; undefined: the norm is not split
  };
  NormOutput SplitNorm(const WeightView& producer, const Residual& x, const NextNorm& next) const;
  // Adds the product of `in` and W^T to x. Returns norm(x), or the partial results from which the
  // GEMM with the weight next.consumer computes it (NormedInput).
  NormedInput AddThenNorm(const WeightView& w, const Tensor& in, const Residual& x,
                          const NextNorm& next);
  // y = epilogue(norm(x) W^T), where the argument `in` represents norm(x). Ignores args.x.
  void NormedGemm(const NormedInput& in, LinearArgs args);
  // Returns norm(x), the input of layer `layer`. The norm may be split between two GEMMs: then the
  // last GEMM of layer `layer` - 1 (in LayerOutput) has already written x * gamma and the sums of
  // x^2. LayerInput and LayerOutput both call SplitNorm to decide whether it is split. They get the
  // same answer, because it depends only on the weights, the number of rows and whether a row has
  // an adapter, and on a GPU all calls have all rows of the batch or step.
  NormedInput LayerInput(const StackWeights& stack, int64_t layer, const Residual& x) const;
  // Adds the product of `in` and Wout^T to x, where Wout is the feed-forward output weight of layer
  // `layer`.
  void LayerOutput(const StackWeights& stack, int64_t layer, const Tensor& in, const Residual& x);

  // rows.qkv = Wqkv norm(x), where the argument `in` represents norm(x). Rotary models also rotate
  // the result.
  void ProjectQkv(const NormedInput& in, const LayerWeights& w, const LayerRows& rows);
  // LongT5: computes the keys and values of the global tokens whose last row is in `rows`.
  void ProjectGlobals(const LayerWeights& w, const LayerRows& rows);
  // Returns the cross-attention queries Wcq norm(x) [rows, heads * head_dim], where the argument
  // `in` represents norm(x). Rotary models also rotate the queries. The queries overwrite the query
  // columns of rows.qkv.
  Tensor ProjectCrossQuery(const NormedInput& in, const LayerWeights& w, const LayerRows& rows);

  SplitNormBuffers encoder_norm_, decoder_norm_;
};

void T5Model::Embed(const EmbedRows& rows) {
  Embedding({.ids = rows.ids,
             .next_tokens = next_tokens_,
             .table = weights_.embedding,
             .y = rows.x,
             .history = rows.slots.empty() ? Tensor() : history_,
             .slots = rows.slots},
            stream_);
}

void T5Model::EncoderLayer(const LayerRows& rows) {
  const LayerWeights& w = weights_.encoder.layers[rows.layer];
  const Residual x = {rows.x, encoder_norm_};

  // Self-attention: x += Wo attention(Wqkv norm(x)).
  if (rows.project) {
    ProjectQkv(LayerInput(weights_.encoder, rows.layer, x), w, rows);
    ProjectGlobals(w, rows);
  }
  if (!rows.finish) return;  // first sweep: attention needs the keys of all rows
  const Tensor attended = SelfAttention(rows);
  const NormedInput normed = AddThenNorm(w.attention_out, attended, x, {w.ffn_norm, w.ffn_in});

  // Feed-forward: x += Wout act(Win norm(x)), where act is config.activation.
  const Tensor hidden = hidden_.Rows(0, rows.count());
  NormedGemm(normed, {.w = &w.ffn_in, .activation = config_.activation, .y = hidden});
  LayerOutput(weights_.encoder, rows.layer, hidden, x);
}

void T5Model::DecoderLayer(const LayerRows& rows) {
  const LayerWeights& w = weights_.decoder.layers[rows.layer];
  const Residual x = {rows.x, decoder_norm_};

  // Causal self-attention: x += Wo attention(Wqkv norm(x)).
  ProjectQkv(LayerInput(weights_.decoder, rows.layer, x), w, rows);
  Tensor attended = SelfAttention(rows);
  NormedInput normed = AddThenNorm(w.attention_out, attended, x, {w.cross_norm, w.cross_q});

  // Cross-attention: x += Wco attention(queries Wcq norm(x), cached keys and values of the encoder
  // input). Wco is the weight cross_out, Wcq is cross_q.
  const Tensor q = ProjectCrossQuery(normed, w, rows);
  attended = CrossAttention(rows.layer, q);
  normed = AddThenNorm(w.cross_out, attended, x, {w.ffn_norm, w.ffn_in});

  // Feed-forward: x += Wout act(Win norm(x)), where act is config.activation.
  const Tensor hidden = hidden_.Rows(0, rows.count());
  NormedGemm(normed, {.w = &w.ffn_in, .activation = config_.activation, .y = hidden});
  LayerOutput(weights_.decoder, rows.layer, hidden, x);
}

void T5Model::FinalNorm(const StackWeights& stack, const Tensor& x, const Tensor& y,
                        std::span<const int32_t> rows) {
  RmsNorm({.x = x, .gamma = stack.final_norm, .y = y, .eps = config_.norm_eps, .rows = rows},
          stream_);
}

void T5Model::ProjectQkv(const NormedInput& in, const LayerWeights& w, const LayerRows& rows) {
  const Tensor qkv = Unrotated(rows.qkv);
  NormedGemm(in, {.w = &w.qkv, .y = qkv, .kv = rows.kv});
  if (!rotary()) return;
  for (const QkvPart part : {QkvPart::kQuery, QkvPart::kKey, QkvPart::kValue}) {
    Rotate(HeadsOf(qkv, part), HeadsOf(rows.qkv, part), rows.positions,
           part == QkvPart::kQuery ? Side::kQuery : Side::kKeyValue);
  }
}

// A global token is the sum of normed rows of its block of tokens, with a norm of its own,
// projected by the same weights as the tokens. Rows before those of `rows` still have the values
// that they had at the beginning of the layer, because no row changes in its first sweep.
void T5Model::ProjectGlobals(const LayerWeights& w, const LayerRows& rows) {
  const std::span<const RowRange> ranges = globals_.all_ranges();
  const auto ends_until = [&](int64_t row) {
    return std::upper_bound(ranges.begin(), ranges.end(), row,
                            [](int64_t at, const RowRange& range) { return at < range.end; }) -
           ranges.begin();
  };
  const int64_t begin = ends_until(rows.begin), end = ends_until(rows.begin + rows.count());
  if (begin == end) return;
  const size_t first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
  const Tensor x = globals_.x.Rows(begin, end);
  RmsNormSums({.x = encoder_x_.Rows(0, rows.begin + rows.count()),
               .gamma = w.attention_norm,
               .ranges = ranges.subspan(first, count),
               .y = x,
               .eps = config_.norm_eps},
              stream_);
  const std::span<const int32_t> adapters = std::exchange(row_adapters_, {});
  const std::span<const AdapterRange> adapter_ranges = std::exchange(row_ranges_, {});
  if (!adapters.empty()) row_adapters_ = {globals_.adapters.as<int32_t>() + begin, count};
  NormedGemm({x, w.global_norm, {}}, {.w = &w.qkv, .y = globals_.qkv.Rows(begin, end)});
  row_adapters_ = adapters;
  row_ranges_ = adapter_ranges;
}

Tensor T5Model::ProjectCrossQuery(const NormedInput& in, const LayerWeights& w,
                                  const LayerRows& rows) {
  const Tensor q = rows.qkv.Columns(0, config_.inner());
  const Tensor unrotated = Unrotated(q);
  NormedGemm(in, {.w = &w.cross_q, .y = unrotated});
  if (rotary()) {
    const int64_t dim = config_.head_dim;
    Rotate(unrotated.SplitLast(dim), q.SplitLast(dim), rows.positions, Side::kQuery);
  }
  return q;
}

// ---- Split norms ----

void T5Model::Carve(Carver& carver) {
  EncoderDecoderModel::Carve(carver);
  if (stream_.backend() == Backend::kCpu) return;
  // A norm can be split between two GEMMs (NormOutput) only if all rows that these GEMMs read or
  // write begin on 16-byte boundaries.
  const bool aligned = (config_.d_model | config_.d_ff | config_.head_dim) % 8 == 0;
  const WeightView& first = weights_.encoder.layers[0].attention_out;
  if (!aligned || SplitNormParts(first, 1, stream_) == 0) return;
  // AddLora computes norms of at most this many columns itself.
  constexpr int64_t kMostLoraNorm = 8192;
  if (adapter_slot_count() > 0 && config_.d_model > kMostLoraNorm) return;
  const auto carve = [&](int64_t max_rows) {
    const int64_t rows = std::min(max_rows, kMostNormRows), d = config_.d_model;
    SplitNormBuffers buffers;
    buffers.scaled = carver.TakeTensor(activations_, {rows, d});
    buffers.squares = carver.TakeTensor(DType::kF32, {rows, d / 16});
    return buffers;
  };
  encoder_norm_ = carve(limits_.max_encode_tokens);
  if (config_.has_decoder()) decoder_norm_ = carve(limits_.max_step_tokens);
}

// Decides whether the norm between two GEMMs is split: `producer`, which adds to x, and
// next.consumer, which reads norm(x). If both support it, returns the tensors to which `producer`
// also writes x * gamma and the sums of x^2. Otherwise returns undefined tensors.
NormOutput T5Model::SplitNorm(const WeightView& producer, const Residual& x,
                              const NextNorm& next) const {
  const int64_t rows = x.x.dim[0];
  if (!x.buffers.scaled.defined()) return {};
  // GEMMs of few rows can add LoRA terms or compute half a norm, but not both.
  if (!row_adapters_.empty() && rows <= kMostFusedNormRows) return {};
  const int64_t parts = SplitNormParts(producer, rows, stream_);
  if (parts == 0 || !SupportsSplitNormInput(next.consumer, rows, stream_)) return {};
  return {next.gamma, x.buffers.scaled.Rows(0, rows),
          Tensor::Dense(x.buffers.squares.data, DType::kF32, {rows, parts})};
}

T5Model::NormedInput T5Model::AddThenNorm(const WeightView& w, const Tensor& in, const Residual& x,
                                          const NextNorm& next) {
  const NormOutput split = SplitNorm(w, x, next);
  Gemm({.x = in, .w = &w, .residual = x.x, .y = x.x, .next_norm = split});
  return {x.x, next.gamma, split};
}

void T5Model::NormedGemm(const NormedInput& in, LinearArgs args) {
  LinearArgs split = args;
  split.x = in.split.scaled;
  split.x_squares = in.split.squares;
  split.norm_eps = config_.norm_eps;
  if (!in.split.gamma.defined() || CorrectsBeforeActivation(split)) {
    args.x = in.x;
    return EncoderDecoderModel::NormedGemm(in.gamma, {}, args);
  }
  const LayerInputRows input = {in.x, in.gamma, {}};
  Gemm(split, &input);
}

T5Model::NormedInput T5Model::LayerInput(const StackWeights& stack, int64_t layer,
                                         const Residual& x) const {
  const LayerWeights& w = stack.layers[layer];
  NormedInput in = {x.x, w.attention_norm, {}};
  if (layer > 0) in.split = SplitNorm(stack.layers[layer - 1].ffn_out, x, {in.gamma, w.qkv});
  return in;
}

void T5Model::LayerOutput(const StackWeights& stack, int64_t layer, const Tensor& in,
                          const Residual& x) {
  const WeightView& w = stack.layers[layer].ffn_out;
  if (layer + 1 == static_cast<int64_t>(stack.layers.size())) {
    Gemm({.x = in, .w = &w, .residual = x.x, .y = x.x});  // the final norm is not split
    return;
  }
  const LayerWeights& next = stack.layers[layer + 1];
  AddThenNorm(w, in, x, {next.attention_norm, next.qkv});
}

}  // namespace

std::unique_ptr<PackedModel> MakeT5Model(ModelConfig config, const ModelLimits& limits,
                                         SharedWeights weights, const Stream& stream) {
  return std::make_unique<T5Model>(std::move(config), limits, std::move(weights), stream);
}

}  // namespace quintet
