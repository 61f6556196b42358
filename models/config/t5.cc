#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config_families.h"

namespace quintet {
namespace {

// Reads the feed-forward activation. feed_forward_proj is "NAME" or "gated-NAME", where NAME is an
// activation name of Hugging Face. Exception: "gated-gelu" means the tanh approximation of GELU. As
// in Hugging Face, the fields dense_act_fn and is_gated_act override feed_forward_proj.
void ReadFeedForward(const std::string& default_projection, ConfigFields* fields,
                     ModelConfig* config) {
  const std::string name = fields->String("feed_forward_proj").value_or(default_projection);
  const std::string kGated = "gated-";
  const bool gated = name.compare(0, kGated.size(), kGated) == 0;
  std::string activation = gated ? name.substr(kGated.size()) : name;
  if (name == "gated-gelu") activation = "gelu_new";
  if (activation.find('-') != std::string::npos || activation.empty()) {
    fields->Invalid("feed_forward_proj",
                    absl::StrCat("expected NAME or gated-NAME, got \"", Printable(name), "\""));
    return;
  }
  config->gated = fields->Bool("is_gated_act").value_or(gated);
  activation = fields->String("dense_act_fn").value_or(activation);
  const auto known = ActivationByName(activation);
  if (!known) {
    fields->Fail(
        absl::UnimplementedError(absl::StrCat("config.json: feed_forward_proj: activation \"",
                                              Printable(activation), "\" is not supported")));
    return;
  }
  config->activation = *known;
}

// Sets config->scale_logits, which is true if the decoder's output is multiplied by d_model^-0.5
// before the language-model head. If config.json has the field scale_decoder_outputs, this field is
// the value. Otherwise the rule in models/README.md, "Logit scale", gives the value. The rule
// leaves scale_logits unset for a UMT5 language model with tie_word_embeddings = false.
void ReadLogitScale(ConfigFields* fields, ModelConfig* config) {
  const auto scale = fields->Bool("scale_decoder_outputs");
  config->tie_word_embeddings = fields->Bool("tie_word_embeddings");
  const bool tied = config->tie_word_embeddings.value_or(true);
  if (config->head != Head::kLanguageModel || config->family == Family::kMT5) {
    config->scale_logits = false;
  } else if (config->scales_as_t5() || tied) {
    config->scale_logits = tied;
  }
  if (config->head == Head::kLanguageModel && scale) {
    config->scale_logits = *scale;
    config->scale_logits_given = true;
  }
}

// Reads what LongT5's encoder has instead of T5's self-attention.
void ReadLongT5Attention(ConfigFields* fields, ModelConfig* config) {
  config->local_radius = fields->Int("local_radius", 1, kMaxLocalRadius).value_or(127);
  const int64_t block = fields->Int("global_block_size", 1, kMaxGlobalBlock).value_or(16);
  const std::string type = fields->String("encoder_attention_type").value_or("local");
  if (type == "transient-global") {
    config->global_block = block;
  } else if (type != "local") {
    fields->Invalid(
        "encoder_attention_type",
        absl::StrCat("expected local or transient-global, got \"", Printable(type), "\""));
  }
}

}  // namespace

void ReadT5Sizes(const T5Defaults& defaults, ConfigFields* fields, ModelConfig* config) {
  config->vocab = fields->Int("vocab_size", 1, kMaxVocab).value_or(defaults.vocab);
  config->d_model = fields->Int({"d_model", "hidden_size"}, 1, kMaxWidth).value_or(512);
  config->head_dim = fields->Int({"d_kv", "head_dim"}, 1, kMaxHeadDim).value_or(64);
  config->d_ff = fields->Int("d_ff", 1, kMaxWidth).value_or(defaults.d_ff);
  config->heads =
      fields->Int({"num_heads", "num_attention_heads"}, 1, kMaxHeads).value_or(defaults.heads);
  if (config->inner() > kMaxWidth) {
    fields->Invalid("num_heads", absl::StrCat("expected num_heads * d_kv of at most ", kMaxWidth,
                                              ", got ", config->inner()));
  }
  config->encoder_layers =
      fields->Int({"num_layers", "num_hidden_layers"}, 1, kMaxLayers).value_or(defaults.layers);
  config->decoder_layers =
      fields->Int("num_decoder_layers", 1, kMaxLayers).value_or(config->encoder_layers);
  config->norm_eps =
      static_cast<float>(fields->Number("layer_norm_epsilon", 1e-12, 1.0).value_or(1e-6));
  config->bias_buckets = fields->Int("relative_attention_num_buckets", 4, 65536).value_or(32);
  config->bias_max_distance =
      fields->Int("relative_attention_max_distance", 1, 65536).value_or(128);
}

void ReadT5Fields(ConfigFields* fields, ModelConfig* config) {
  T5Defaults defaults;
  const bool multilingual = config->family == Family::kMT5 || config->family == Family::kUMT5;
  if (multilingual) defaults = {.vocab = 250112, .d_ff = 1024, .layers = 8, .heads = 6};
  ReadT5Sizes(defaults, fields, config);
  config->position = PositionEncoding::kT5;
  config->bias_per_layer = config->family == Family::kUMT5;
  config->attention_scale = 1.0f;
  if (config->family == Family::kLongT5) ReadLongT5Attention(fields, config);
  ReadFeedForward(multilingual ? "gated-gelu" : "relu", fields, config);
  ReadLogitScale(fields, config);
  if (config->head == Head::kEncoder || config->head == Head::kTokenClassification) {
    config->decoder_layers = 0;
  }
}

}  // namespace quintet
