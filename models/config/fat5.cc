#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config_families.h"

namespace quintet {
namespace {

void ReadRope(ConfigFields* fields, ModelConfig* config) {
  config->position = PositionEncoding::kRope;
  config->rope_fraction = fields->Number("rotary_emb_fraction", 0.0, 1.0).value_or(1.0);
  config->rope_base =
      static_cast<float>(fields->Number("rotary_base", 1e-3, 1e30).value_or(10000.0));
  config->rope_interleaved = fields->Bool("rotary_interleaved").value_or(false);
  config->rope_xpos_base =
      static_cast<float>(fields->Number("rotary_scale_base", 1e-3, 1e30).value_or(0.0));
  const auto rotary_dim =
      static_cast<int64_t>(static_cast<double>(config->head_dim) * config->rope_fraction);
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    fields->Invalid("rotary_emb_fraction",
                    absl::StrCat("expected an even number of rotated channels, got ", rotary_dim,
                                 " of ", config->head_dim));
  }
}

void ReadAlibi(ConfigFields* fields, ModelConfig* config) {
  config->position = PositionEncoding::kAlibi;
  const std::string mode = fields->String("alibi_mode").value_or("symetric");
  if (mode != "symetric" && mode != "asymetric") {
    fields->Invalid("alibi_mode", absl::StrCat("expected \"symetric\" or \"asymetric\", got \"",
                                               Printable(mode), "\""));
  }
  config->alibi_asymmetric = mode == "asymetric";
  if (config->alibi_asymmetric && config->heads % 2 != 0) {
    fields->Invalid("num_heads",
                    absl::StrCat("asymmetric ALiBi needs an even number, got ", config->heads));
  }
}

// Reads position_encoding_type. Its values are case-sensitive, as in FAT5; any unknown value means
// no position encoding.
void ReadPosition(ConfigFields* fields, ModelConfig* config) {
  const std::string type = fields->String("position_encoding_type").value_or("t5");
  const bool randomized = fields->Bool("use_randomized_position_encoding").value_or(false);
  if (randomized && (type == "t5" || type == "ALiBi")) {
    fields->Fail(
        absl::UnimplementedError("config.json: use_randomized_position_encoding: true is not "
                                 "supported, because it makes the output "
                                 "random"));
  }
  if (type == "t5") {
    config->position = PositionEncoding::kT5;
  } else if (type == "ALiBi") {
    ReadAlibi(fields, config);
  } else if (type == "RoPE") {
    ReadRope(fields, config);
  } else if (type == "FIRE") {
    config->position = PositionEncoding::kFire;
    config->fire_width = fields->Int("fire_mlp_width", 1, 65536).value_or(32);
  } else {
    config->position = PositionEncoding::kNone;
  }
}

}  // namespace

void ReadFat5Fields(ConfigFields* fields, ModelConfig* config) {
  ReadT5Sizes(T5Defaults(), fields, config);
  config->gated = fields->Bool("use_glu_mlp").value_or(false);
  config->activation =
      fields->Bool("use_gelu_act").value_or(true) ? Activation::kGeluTanh : Activation::kRelu;
  config->attention_scale =
      static_cast<float>(fields->Number("attention_scale", 1e-6, 1e6)
                             .value_or(1.0 / std::sqrt(static_cast<double>(config->heads))));
  config->max_positions = fields->Int("max_sequence_length", 1, kMaxPositions).value_or(1024);
  ReadPosition(fields, config);
  // FAT5 never scales logits, even if config.json has the fields that control this in T5.
  config->scale_logits = false;
  // FAT5's heads for classification and question answering use only the encoder.
  if (config->head != Head::kLanguageModel && config->head != Head::kNone) {
    config->decoder_layers = 0;
  }
}

}  // namespace quintet
