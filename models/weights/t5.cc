#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/weights/weights_families.h"

namespace quintet {
namespace {

using Names = WeightTableBuilder::Names;

// Names of the tensors of one block. T5 and FAT5 checkpoints differ only in these names.
struct BlockNames {
  std::string q, k, v, o, norm;  // self-attention
  std::string cross_q, cross_k, cross_v, cross_o, cross_norm;
  Names in;  // plain feed-forward
  std::string gate, up, out, ffn_norm;
  std::string position;     // prefix of the names of position parameters
  std::string global_norm;  // LongT5 with transient-global attention
};

// Name of the self-attention module in a block of T5, mT5, UMT5 or LongT5.
std::string SelfAttentionName(const ModelConfig& config, const std::string& stack) {
  if (config.local_radius == 0 || stack == "decoder") return "SelfAttention";
  return config.global_block == 0 ? "LocalSelfAttention" : "TransientGlobalSelfAttention";
}

BlockNames T5Block(const ModelConfig& config, const std::string& stack, int64_t layer) {
  const std::string block = absl::StrCat(stack, ".block.", layer, ".layer.");
  const std::string self = absl::StrCat(block, "0.", SelfAttentionName(config, stack), ".");
  const std::string cross = block + "1.EncDecAttention.";
  const std::string ffn = block + (stack == "decoder" ? "2" : "1");
  const std::string dense = ffn + ".DenseReluDense.";
  BlockNames n;
  n.q = self + "q.weight", n.k = self + "k.weight", n.v = self + "v.weight";
  n.o = self + "o.weight", n.norm = block + "0.layer_norm.weight";
  n.cross_q = cross + "q.weight", n.cross_k = cross + "k.weight", n.cross_v = cross + "v.weight";
  n.cross_o = cross + "o.weight", n.cross_norm = block + "1.layer_norm.weight";
  n.in = {dense + "wi.weight"};
  n.gate = dense + "wi_0.weight", n.up = dense + "wi_1.weight", n.out = dense + "wo.weight";
  n.ffn_norm = ffn + ".layer_norm.weight";
  n.position = self, n.global_norm = self + "global_input_layer_norm.weight";
  return n;
}

BlockNames Fat5Block(const std::string& stack, int64_t layer) {
  const std::string block = absl::StrCat(stack, ".block.", layer, ".");
  const std::string self_layer = block + "self_attention_layer.";
  const std::string cross_layer = block + "cross_attention_layer.";
  const std::string self = self_layer + "self_attention.", ffn = block + "ff_layer.";
  const std::string cross = cross_layer + "cross_attention.";
  BlockNames n;
  n.q = self + "Wq.weight", n.k = self + "Wk.weight", n.v = self + "Wv.weight";
  n.o = self + "o.weight", n.norm = self_layer + "layer_norm.weight";
  n.cross_q = cross + "Wq.weight", n.cross_k = cross + "Wk.weight", n.cross_v = cross + "Wv.weight";
  n.cross_o = cross + "o.weight", n.cross_norm = cross_layer + "layer_norm.weight";
  // FAT5's own converter omits "act." in feed-forward layers that are not gated, so accept both.
  n.in = {ffn + "act.wi.weight", ffn + "wi.weight"};
  n.gate = ffn + "act.wi_0.weight", n.up = ffn + "act.wi_1.weight", n.out = ffn + "wo.weight";
  n.ffn_norm = ffn + "layer_norm.weight";
  n.position = self + "pe_encoding.";
  return n;
}

BlockNames BlockOf(const ModelConfig& config, const std::string& stack, int64_t layer) {
  return config.family == Family::kFat5 ? Fat5Block(stack, layer) : T5Block(config, stack, layer);
}

void AddPosition(const ModelConfig& config, const std::string& name, const std::string& source,
                 PositionParameters* to, WeightTableBuilder* table) {
  if (config.position == PositionEncoding::kT5) {
    table->Vector(name + "buckets.weight", {config.bias_buckets, config.heads},
                  {source + "relative_attention_bias.weight"}, &to->buckets);
  } else if (config.position == PositionEncoding::kFire) {
    table->Vector(name + "fire_in.weight", {config.fire_width, 1}, {source + "mlp.0.weight"},
                  &to->fire_in);
    table->Vector(name + "fire_in.bias", {config.fire_width}, {source + "mlp.0.bias"},
                  &to->fire_in_bias);
    table->Vector(name + "fire_out.weight", {config.heads, config.fire_width},
                  {source + "mlp.2.weight"}, &to->fire_out);
    table->Vector(name + "fire_out.bias", {config.heads}, {source + "mlp.2.bias"},
                  &to->fire_out_bias);
    table->Vector(name + "fire_c", {}, {source + "c"}, &to->fire_c);
    table->Vector(name + "fire_length", {}, {source + "init_L"}, &to->fire_length);
    table->Vector(name + "fire_multiplier", {}, {source + "L_multiplier"}, &to->fire_multiplier);
  }
}

void AddLayer(const ModelConfig& config, const std::string& name, const BlockNames& source,
              bool cross, LayerWeights* to, WeightTableBuilder* table) {
  const int64_t d = config.d_model, inner = config.inner(), f = config.d_ff;
  table->Vector(name + "attention_norm.weight", {d}, {source.norm}, &to->attention_norm);
  table->Stacked(name + "qkv.weight", 3 * inner, d, {{source.q}, {source.k}, {source.v}}, false,
                 &to->qkv);
  table->Matrix(name + "attention_out.weight", d, inner, {source.o}, &to->attention_out);
  if (cross) {
    table->Vector(name + "cross_norm.weight", {d}, {source.cross_norm}, &to->cross_norm);
    table->Matrix(name + "cross_q.weight", inner, d, {source.cross_q}, &to->cross_q);
    table->Matrix(name + "cross_out.weight", d, inner, {source.cross_o}, &to->cross_out);
  }
  table->Vector(name + "ffn_norm.weight", {d}, {source.ffn_norm}, &to->ffn_norm);
  if (config.gated) {
    table->Stacked(name + "ffn_in.weight", 2 * f, d, {{source.gate}, {source.up}}, true,
                   &to->ffn_in);
  } else {
    table->Matrix(name + "ffn_in.weight", f, d, source.in, &to->ffn_in);
  }
  table->Matrix(name + "ffn_out.weight", d, f, {source.out}, &to->ffn_out);
  table->KeepWide();
}

void AddStack(const ModelConfig& config, bool decoder, WeightDestinations* destinations,
              WeightTableBuilder* table) {
  const std::string stack = decoder ? "decoder" : "encoder";
  StackWeights* to = decoder ? &destinations->weights.decoder : &destinations->weights.encoder;
  auto& positions = decoder ? destinations->decoder_position : destinations->encoder_position;
  for (size_t n = 0; n < to->layers.size(); ++n) {
    const auto layer = static_cast<int64_t>(n);
    const BlockNames source = BlockOf(config, stack, layer);
    const std::string name = absl::StrCat(stack, ".layers.", layer, ".");
    AddLayer(config, name, source, decoder, &to->layers[n], table);
    if (n == 0 || config.bias_per_layer) {
      AddPosition(config, name + "position.", source.position, &positions[n], table);
    }
    if (decoder || config.global_block == 0) continue;
    table->Vector(name + "global_norm.weight", {config.d_model}, {source.global_norm},
                  &to->layers[n].global_norm);
    if (n > 0) continue;
    table->Vector(name + "position.global_buckets.weight", {config.bias_buckets, config.heads},
                  {source.position + "global_relative_attention_bias.weight"},
                  &positions[n].global_buckets);
  }
  table->Vector(stack + ".final_norm.weight", {config.d_model},
                {stack + ".final_layer_norm.weight"}, &to->final_norm);
}

void AddCrossKv(const ModelConfig& config, WeightDestinations* destinations,
                WeightTableBuilder* table) {
  std::vector<Names> sources;
  for (int64_t layer = 0; layer < config.decoder_layers; ++layer) {
    const BlockNames source = BlockOf(config, "decoder", layer);
    sources.push_back({source.cross_k});
    sources.push_back({source.cross_v});
  }
  table->Stacked("decoder.cross_kv.weight", config.decoder_layers * 2 * config.inner(),
                 config.d_model, sources, false, &destinations->weights.cross_kv);
}

void AddHead(const ModelConfig& config, const Names& embedding, ModelWeights* to,
             WeightTableBuilder* table) {
  const int64_t d = config.d_model, labels = config.labels;
  switch (config.head) {
    case Head::kNone:
    case Head::kEncoder:
      return;
    case Head::kLanguageModel: {
      Names names = {"lm_head.weight"};
      if (config.is_t5()) names.insert(names.end(), embedding.begin(), embedding.end());
      table->Matrix("head.weight", config.vocab, d, names, &to->head);
      return;
    }
    case Head::kSequenceClassification: {
      const std::string head = "classification_head.";
      table->Matrix("classifier_dense.weight", d, d, {head + "dense.weight"},
                    &to->classifier_dense);
      table->Vector("classifier_dense.bias", {d}, {head + "dense.bias"},
                    &to->classifier_dense_bias);
      table->Matrix("classifier.weight", labels, d, {head + "out_proj.weight"}, &to->classifier);
      table->Vector("classifier.bias", {labels}, {head + "out_proj.bias"}, &to->classifier_bias);
      return;
    }
    case Head::kTokenClassification:
    case Head::kQuestionAnswering: {
      const std::string head =
          config.head == Head::kQuestionAnswering ? "qa_outputs." : "classifier.";
      table->Matrix("classifier.weight", labels, d, {head + "weight"}, &to->classifier);
      table->Vector("classifier.bias", {labels}, {head + "bias"}, &to->classifier_bias);
      return;
    }
  }
}

}  // namespace

void AddT5Weights(const ModelConfig& config, WeightDestinations* destinations,
                  WeightTableBuilder* table) {
  // All names of the shared embedding. A file may use any of them.
  const Names embedding = {"shared.weight", "encoder.embed_tokens.weight",
                           "decoder.embed_tokens.weight"};
  table->Table("embedding.weight", config.vocab, config.d_model, embedding,
               &destinations->weights.embedding);
  AddStack(config, false, destinations, table);
  if (config.has_decoder()) {
    AddStack(config, true, destinations, table);
    AddCrossKv(config, destinations, table);
  }
  AddHead(config, embedding, &destinations->weights, table);
}

bool IsIgnoredT5Tensor(const ModelConfig& config, const std::string& name) {
  // A cross-attention position bias is found in files older than transformers 4; no model ever used
  // it.
  if (absl::EndsWith(name, ".EncDecAttention.relative_attention_bias.weight")) return true;
  // An encoder-only model can be loaded from the files of an encoder-decoder: skip the decoder.
  if (!config.has_decoder() && absl::StartsWith(name, "decoder.")) return true;
  return config.head != Head::kLanguageModel && name == "lm_head.weight";
}

absl::Status CheckT5Layout(const ModelConfig& config, const std::string& name) {
  if (config.family != Family::kFat5) return absl::OkStatus();
  if (absl::EndsWith(name, ".Wkv.weight") || absl::EndsWith(name, "ff_layer.act.wo.weight")) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", Printable(name),
                     ": FAT5 checkpoints from before March 2024 (keys and values in one Wkv) "
                     "are not supported; save the model again with a current FAT5"));
  }
  return absl::OkStatus();
}

}  // namespace quintet
