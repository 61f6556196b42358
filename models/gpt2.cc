#include "models/gpt2.h"

#include <span>
#include <utility>

#include "kernels/ops/embedding.h"
#include "kernels/ops/norm.h"

namespace quintet {
namespace {

// Pre-norm layers with biases. Each sublayer adds its result to the residual stream x; LN is
// LayerNorm, attention is causal:
//   self-attention   x += Wo attention(Wqkv LN(x))
//   feed-forward     x += Wout gelu(Win LN(x))
class Gpt2Model final : public PackedModel {
 public:
  Gpt2Model(ModelConfig config, const ModelLimits& limits, SharedWeights weights,
            const Stream& stream)
      : PackedModel(std::move(config), limits, std::move(weights), stream) {}

  // Never called, because GPT-2 has no encoder: the engine calls it only if config().has_encoder().
  void ProjectCross(const Tensor&, int64_t, std::span<const int32_t>,
                    std::span<const int32_t>) override {
    CheckFailed(__FILE__, __LINE__, "GPT-2 has no encoder");
  }

 private:
  void CheckBatch(const DecodeBatch& batch) const override;
  void Embed(const EmbedRows& rows) override;
  void Layer(const LayerRows& rows) override;
  void FinalNorm(const StackWeights& stack, const Tensor& x, const Tensor& y,
                 std::span<const int32_t> rows) override;
};

void Gpt2Model::CheckBatch(const DecodeBatch& batch) const {
  for (const int32_t kv_len : batch.kv_lens) {
    QT_CHECK_LE(static_cast<int64_t>(kv_len), config_.max_positions);
  }
}

void Gpt2Model::Embed(const EmbedRows& rows) {
  Embedding({.ids = rows.ids,
             .next_tokens = next_tokens_,
             .table = weights_.embedding,
             .positions = rows.positions,
             .position_table = weights_.position_embedding,
             .y = rows.x,
             .history = rows.slots.empty() ? Tensor() : history_,
             .slots = rows.slots},
            stream_);
}

void Gpt2Model::Layer(const LayerRows& rows) {
  const LayerWeights& w = weights_.decoder.layers[rows.layer];
  const Tensor& x = rows.x;

  // Self-attention: x += Wo attention(Wqkv LN(x)), where LN is LayerNorm.
  if (rows.project) {
    NormedGemm(w.attention_norm, w.attention_norm_beta,
               {.x = x, .w = &w.qkv, .bias = w.qkv_bias, .y = rows.qkv, .kv = rows.kv});
  }
  if (!rows.finish) return;  // first sweep: attention needs the keys of all rows
  const Tensor attended = SelfAttention(rows);
  Gemm({.x = attended, .w = &w.attention_out, .bias = w.attention_out_bias, .residual = x, .y = x});

  // Feed-forward: x += Wout gelu(Win LN(x)), where LN is LayerNorm.
  const Tensor hidden = hidden_.Rows(0, rows.count());
  NormedGemm(w.ffn_norm, w.ffn_norm_beta,
             {.x = x,
              .w = &w.ffn_in,
              .bias = w.ffn_in_bias,
              .activation = config_.activation,
              .y = hidden});
  Gemm({.x = hidden, .w = &w.ffn_out, .bias = w.ffn_out_bias, .residual = x, .y = x});
}

void Gpt2Model::FinalNorm(const StackWeights& stack, const Tensor& x, const Tensor& y,
                          std::span<const int32_t> rows) {
  LayerNorm({.x = x,
             .gamma = stack.final_norm,
             .beta = stack.final_norm_beta,
             .y = y,
             .eps = config_.norm_eps,
             .rows = rows},
            stream_);
}

}  // namespace

std::unique_ptr<PackedModel> MakeGpt2Model(ModelConfig config, const ModelLimits& limits,
                                           SharedWeights weights, const Stream& stream) {
  return std::make_unique<Gpt2Model>(std::move(config), limits, std::move(weights), stream);
}

}  // namespace quintet
