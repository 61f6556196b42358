#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/weights/weights_families.h"

namespace quintet {
namespace {

void AddBlock(const ModelConfig& config, int64_t layer, LayerWeights* to,
              WeightTableBuilder* table) {
  const int64_t d = config.d_model, f = config.d_ff;
  const std::string name = absl::StrCat("decoder.layers.", layer, ".");
  const std::string block = absl::StrCat("h.", layer, ".");
  const std::string attention = block + "attn.", mlp = block + "mlp.";
  table->Vector(name + "attention_norm.weight", {d}, {block + "ln_1.weight"}, &to->attention_norm);
  table->Vector(name + "attention_norm.bias", {d}, {block + "ln_1.bias"}, &to->attention_norm_beta);
  // Conv1D weights are [in, out]. The columns of c_attn are q, then k, then v.
  table->Transposed(name + "qkv.weight", 3 * d, d, {attention + "c_attn.weight"}, &to->qkv);
  table->Vector(name + "qkv.bias", {3 * d}, {attention + "c_attn.bias"}, &to->qkv_bias);
  table->Transposed(name + "attention_out.weight", d, d, {attention + "c_proj.weight"},
                    &to->attention_out);
  table->Vector(name + "attention_out.bias", {d}, {attention + "c_proj.bias"},
                &to->attention_out_bias);
  table->Vector(name + "ffn_norm.weight", {d}, {block + "ln_2.weight"}, &to->ffn_norm);
  table->Vector(name + "ffn_norm.bias", {d}, {block + "ln_2.bias"}, &to->ffn_norm_beta);
  table->Transposed(name + "ffn_in.weight", f, d, {mlp + "c_fc.weight"}, &to->ffn_in);
  table->Vector(name + "ffn_in.bias", {f}, {mlp + "c_fc.bias"}, &to->ffn_in_bias);
  table->Transposed(name + "ffn_out.weight", d, f, {mlp + "c_proj.weight"}, &to->ffn_out);
  table->KeepWide();
  table->Vector(name + "ffn_out.bias", {d}, {mlp + "c_proj.bias"}, &to->ffn_out_bias);
}

}  // namespace

void AddGpt2Weights(const ModelConfig& config, WeightDestinations* destinations,
                    WeightTableBuilder* table) {
  ModelWeights* to = &destinations->weights;
  table->Table("embedding.weight", config.vocab, config.d_model, {"wte.weight"}, &to->embedding);
  table->Table("position_embedding.weight", config.max_positions, config.d_model, {"wpe.weight"},
               &to->position_embedding);
  for (size_t n = 0; n < to->decoder.layers.size(); ++n) {
    AddBlock(config, static_cast<int64_t>(n), &to->decoder.layers[n], table);
  }
  table->Vector("decoder.final_norm.weight", {config.d_model}, {"ln_f.weight"},
                &to->decoder.final_norm);
  table->Vector("decoder.final_norm.bias", {config.d_model}, {"ln_f.bias"},
                &to->decoder.final_norm_beta);
  if (config.head == Head::kLanguageModel) {
    table->Matrix("head.weight", config.vocab, config.d_model, {"lm_head.weight", "wte.weight"},
                  &to->head);
  } else if (config.head == Head::kSequenceClassification) {
    table->Matrix("classifier.weight", config.labels, config.d_model, {"score.weight"},
                  &to->classifier);
  }
}

bool IsIgnoredGpt2Tensor(const std::string& name) {
  // "h.N.attn.bias" is not the bias of a projection (these are named c_attn.bias and c_proj.bias)
  // but the causal mask, which old files contain.
  return absl::StartsWith(name, "h.") &&
         (absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias"));
}

}  // namespace quintet
