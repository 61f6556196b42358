#include "models/gpt2.h"

#include <utility>

#include "kernels/embedding.h"
#include "kernels/norm.h"

namespace quintet {
namespace {

class Gpt2Model final : public PackedModel {
 public:
  Gpt2Model(ModelConfig config, const ModelLimits& limits, ModelWeights weights,
            const Stream& stream)
      : PackedModel(std::move(config), limits, std::move(weights), stream) {}

  // There is no encoder: the engine asks config().has_encoder() first.
  void ProjectCross(const Tensor&, int64_t, absl::Span<const int32_t>) override {
    CheckFailed(__FILE__, __LINE__, "GPT-2 has no encoder", "");
  }

 private:
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
};

void Gpt2Model::CheckBatch(const DecodeBatch& batch) const {
  for (const int32_t kv_len : batch.kv_lens) {
    QT_CHECK_LE(static_cast<int64_t>(kv_len), config_.max_positions);
  }
}

void Gpt2Model::EmbedRows(const Tensor& ids, const Tensor& positions,
                          absl::Span<const int32_t> slots, const Tensor& x) {
  Embedding({.ids = ids,
             .chosen = chosen_,
             .table = weights_.embedding,
             .positions = positions,
             .position_table = weights_.position_embedding,
             .y = x,
             .history = slots.empty() ? Tensor() : history_,
             .slots = slots},
            stream_);
}

void Gpt2Model::ProjectRows(const LayerWeights& w, const Tensor& x, const Tensor&,
                            const Tensor& qkv, const KvOutput& kv) {
  NormedProduct(w.attention_norm, w.attention_norm_beta,
                {.x = x, .w = &w.qkv, .bias = w.qkv_bias, .y = qkv, .kv = kv});
}

void Gpt2Model::FinishRows(const LayerWeights& w, const LayerWeights*, const Tensor& attended,
                           const Tensor& x) {
  Product(
      {.x = attended, .w = &w.attention_out, .bias = w.attention_out_bias, .residual = x, .y = x});
  const Tensor hidden = hidden_.Rows(0, x.dim[0]);
  NormedProduct(w.ffn_norm, w.ffn_norm_beta,
                {.x = x,
                 .w = &w.ffn_in,
                 .bias = w.ffn_in_bias,
                 .activation = config_.activation,
                 .y = hidden});
  Product({.x = hidden, .w = &w.ffn_out, .bias = w.ffn_out_bias, .residual = x, .y = x});
}

void Gpt2Model::NormRows(const StackWeights& stack, const Tensor& x, const Tensor& y,
                         absl::Span<const int32_t> rows) {
  LayerNorm({.x = x,
             .gamma = stack.final_norm,
             .beta = stack.final_norm_beta,
             .y = y,
             .eps = config_.norm_eps,
             .rows = rows},
            stream_);
}

void Gpt2Model::DecoderLayer(int64_t layer, const Tensor& x) {
  const LayerWeights& w = weights_.decoder.layers[layer];
  const Tensor qkv = qkv_.Rows(0, x.dim[0]);
  const KvOutput kv = KvOnTheWay(w.qkv, layer);
  ProjectRows(w, x, step_.positions(), qkv, kv);
  const bool stored = kv.cache != nullptr;
  FinishRows(w, nullptr, SelfAttend(layer, qkv, stored, nullptr, AttentionScale(layer)), x);
}

}  // namespace

std::unique_ptr<PackedModel> MakeGpt2Model(ModelConfig config, const ModelLimits& limits,
                                           ModelWeights weights, const Stream& stream) {
  return std::make_unique<Gpt2Model>(std::move(config), limits, std::move(weights), stream);
}

}  // namespace quintet
