#include "models/gpt2.h"

#include <utility>

#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "models/packed_model.h"

namespace quintet {
namespace {

class Gpt2Model final : public PackedModel {
 public:
  Gpt2Model(ModelConfig config, const ModelLimits& limits, ModelWeights weights,
            const Stream& stream)
      : PackedModel(std::move(config), limits, std::move(weights), stream) {}

  // There is no encoder: the engine asks config().has_encoder() first.
  void BeginEncode(absl::Span<const int32_t>, absl::Span<const int32_t>) override { NoEncoder(); }
  bool EncodeSlice(int64_t) override { NoEncoder(); }
  Tensor EncoderStates() const override { NoEncoder(); }
  void ProjectCross(const Tensor&, int64_t, absl::Span<const int32_t>) override { NoEncoder(); }

 private:
  [[noreturn]] static void NoEncoder() {
    CheckFailed(__FILE__, __LINE__, "GPT-2 has no encoder", "");
  }
  void CheckBatch(const DecodeBatch& batch) const override;
  void Forward() override;
  void Layer(int64_t layer, const Tensor& x);
  void CarveArrays(Carver&) override {}  // a decoder needs no more than step_
};

void Gpt2Model::CheckBatch(const DecodeBatch& batch) const {
  for (const int32_t kv_len : batch.kv_lens) {
    QT_CHECK_LE(static_cast<int64_t>(kv_len), config_.max_positions);
  }
}

void Gpt2Model::Forward() {
  const Tensor x = x_.Rows(0, step_.tokens().dim[0]);
  Embedding({.ids = step_.tokens(),
             .chosen = chosen_,
             .table = weights_.embedding,
             .positions = step_.positions(),
             .position_table = weights_.position_embedding,
             .y = x},
            stream_);
  for (int64_t layer = 0; layer < config_.decoder_layers; ++layer) {
    Layer(layer, x);
    Observe(true, layer, x);
  }
  const Tensor states = WantedStates();
  if (states.dim[0] == 0) return;
  LayerNorm({.x = x,
             .gamma = weights_.decoder.final_norm,
             .beta = weights_.decoder.final_norm_beta,
             .y = states,
             .eps = config_.norm_eps,
             .rows = step_.batch().wanted},
            stream_);
}

void Gpt2Model::Layer(int64_t layer, const Tensor& x) {
  const LayerWeights& w = weights_.decoder.layers[layer];
  const Tensor qkv = qkv_.Rows(0, x.dim[0]);
  const Tensor hidden = hidden_.Rows(0, x.dim[0]);
  float scale = config_.attention_scale;
  if (config_.scale_by_inverse_layer) scale /= static_cast<float>(layer + 1);

  const KvOutput kv = KvOnTheWay(w.qkv, layer);
  NormedProduct(w.attention_norm, w.attention_norm_beta,
                {.x = x, .w = &w.qkv, .bias = w.qkv_bias, .y = qkv, .kv = kv});
  const Tensor attended = SelfAttend(layer, qkv, kv.cache != nullptr, nullptr, scale);
  Product(
      {.x = attended, .w = &w.attention_out, .bias = w.attention_out_bias, .residual = x, .y = x});

  NormedProduct(w.ffn_norm, w.ffn_norm_beta,
                {.x = x,
                 .w = &w.ffn_in,
                 .bias = w.ffn_in_bias,
                 .activation = config_.activation,
                 .y = hidden});
  Product({.x = hidden, .w = &w.ffn_out, .bias = w.ffn_out_bias, .residual = x, .y = x});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> NewGpt2Model(ModelConfig config, const ModelLimits& limits,
                                                    ModelWeights weights, const Stream& stream) {
  auto model = std::make_unique<Gpt2Model>(std::move(config), limits, std::move(weights), stream);
  absl::Status status = model->Allocate();
  if (!status.ok()) return status;
  return model;
}

absl::StatusOr<ModelMemory> MeasureGpt2Model(ModelConfig config, const ModelLimits& limits,
                                             ModelWeights weights, const Stream& stream) {
  Gpt2Model model(std::move(config), limits, std::move(weights), stream);
  if (absl::Status status = model.Measure(); !status.ok()) return status;
  return model.memory();
}

}  // namespace quintet
