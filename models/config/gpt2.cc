#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config_families.h"

namespace quintet {

void ReadGpt2Fields(ConfigFields* fields, ModelConfig* config) {
  config->vocab = fields->Int("vocab_size", 1, kMaxVocab).value_or(50257);
  config->d_model = fields->Int({"n_embd", "hidden_size"}, 1, kMaxWidth).value_or(768);
  config->heads = fields->Int({"n_head", "num_attention_heads"}, 1, kMaxHeads).value_or(12);
  config->decoder_layers =
      fields->Int({"n_layer", "num_hidden_layers"}, 1, kMaxLayers).value_or(12);
  config->encoder_layers = 0;
  config->max_positions =
      fields->Int({"n_positions", "max_position_embeddings"}, 1, kMaxPositions).value_or(1024);
  config->d_ff = fields->Int("n_inner", 1, kMaxWidth).value_or(4 * config->d_model);
  if (config->d_ff > kMaxWidth) {
    fields->Invalid(
        "n_embd", absl::StrCat("expected 4 n_embd of at most ", kMaxWidth, ", got ", config->d_ff));
  }
  if (config->d_model % config->heads != 0) {
    fields->Invalid("n_head", absl::StrCat("expected a divisor of n_embd ", config->d_model,
                                           ", got ", config->heads));
    return;
  }
  config->head_dim = config->d_model / config->heads;
  if (config->head_dim > kMaxHeadDim) {
    fields->Invalid("n_head", absl::StrCat("expected heads of at most ", kMaxHeadDim,
                                           " channels, got ", config->head_dim));
  }
  config->norm_eps =
      static_cast<float>(fields->Number("layer_norm_epsilon", 1e-12, 1.0).value_or(1e-5));
  config->position = PositionEncoding::kLearned;
  config->gated = false;
  const std::string activation = fields->String("activation_function").value_or("gelu_new");
  const auto known = ActivationByName(activation);
  if (!known) {
    fields->Fail(absl::UnimplementedError(absl::StrCat(
        "config.json: activation_function: \"", Printable(activation), "\" is not supported")));
  }
  config->activation = known.value_or(Activation::kNone);
  const bool scaled = fields->Bool("scale_attn_weights").value_or(true);
  config->attention_scale =
      scaled ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(config->head_dim))) : 1.0f;
  config->scale_by_inverse_layer = fields->Bool("scale_attn_by_inverse_layer_idx").value_or(false);
  // reorder_and_upcast_attn asks for f32 attention scores and softmax. Quintet always uses f32
  // there, so only the field's type is checked.
  fields->Bool("reorder_and_upcast_attn");
  if (fields->Bool("add_cross_attention").value_or(false)) {
    fields->Fail(
        absl::UnimplementedError("config.json: add_cross_attention: true is not supported"));
  }
  config->scale_logits = false;
}

}  // namespace quintet
