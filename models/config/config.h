// A model's architecture, read from config.json and validated. All other files of models/ depend on
// it. Files of transformers 4.x and 5.x give the same ModelConfig. Sources: Hugging Face's T5Config
// and GPT2Config, and FAT5's FlashT5Config.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/linear/linear.h"

namespace quintet {

enum class Family : uint8_t { kT5, kMT5, kUMT5, kLongT5, kFat5, kGpt2 };
// Returns config.json's model_type: "t5", "mt5", "umt5", "longt5", "flash_t5" or "gpt2".
const char* FamilyName(Family family);

// The model's output head, from the class name in config.json's `architectures`.
enum class Head : uint8_t {
  kNone,           // T5Model, GPT2Model
  kLanguageModel,  // ..ForConditionalGeneration, GPT2LMHeadModel
  kEncoder,        // ..EncoderModel
  kSequenceClassification,
  kTokenClassification,
  kQuestionAnswering,
};
const char* HeadName(Head head);

// Meaning of a classifier's outputs. kExclusive: exactly one label applies; kIndependent: any
// number of labels; kValues: numbers (regression).
enum class LabelKind : uint8_t { kExclusive, kIndependent, kValues };

enum class PositionEncoding : uint8_t { kNone, kT5, kAlibi, kRope, kFire, kLearned };

struct ModelConfig {
  Family family = Family::kT5;
  Head head = Head::kLanguageModel;

  // Sizes of the model. For GPT-2, d_model is n_embd of config.json, decoder_layers is n_layer, and
  // encoder_layers is 0.
  int64_t vocab = 0;  // rows of the embedding table
  int64_t d_model = 0, head_dim = 0, heads = 0, d_ff = 0;
  int64_t encoder_layers = 0, decoder_layers = 0;
  int64_t inner() const { return heads * head_dim; }
  bool has_encoder() const { return encoder_layers > 0; }
  bool has_decoder() const { return decoder_layers > 0; }

  // These functions tell code outside models/ how model families differ; such code calls them and
  // does not test `family`. decoder_only is true for GPT-2.
  bool decoder_only() const { return !has_encoder(); }
  // Maximum number of positions of a sequence, prompt and new tokens together; 0: no limit.
  int64_t position_limit() const { return decoder_only() ? max_positions : 0; }
  // True if the classification head reads the encoded input (Model::EncodedStates): FAT5's heads,
  // token classification, and decoder-only models. False if it reads the decoder's hidden states:
  // all other heads.
  bool classifies_input() const {
    return decoder_only() || family == Family::kFat5 || head == Head::kTokenClassification;
  }
  // True for T5, mT5, UMT5 and LongT5, false for FAT5 and GPT-2. In these four families the
  // checkpoint decides whether the embedding is the language-model head (tied) and whether logits
  // are scaled (models/README.md).
  bool is_t5() const { return family != Family::kFat5 && family != Family::kGpt2; }
  // True for the families of which T5's rule about scaled logits holds.
  bool scales_as_t5() const { return family == Family::kT5 || family == Family::kLongT5; }

  // Parameters of the forward pass.
  float norm_eps = 1e-6f;
  Activation activation = Activation::kRelu;
  bool gated = false;
  // Factor of the attention scores q k^T. T5: 1. FAT5: config.json's value, or 1/sqrt(heads).
  // GPT-2: 1/sqrt(head_dim), or 1 if scale_attn_weights is false.
  float attention_scale = 1.0f;
  bool scale_by_inverse_layer = false;  // GPT-2: attention_scale / (layer index + 1)
  PositionEncoding position = PositionEncoding::kT5;
  int64_t bias_buckets = 32, bias_max_distance = 128;
  bool bias_per_layer = false;  // UMT5: each layer has its own bias table
  // LongT5: a token of the encoder sees the tokens at distances of at most local_radius. 0: all.
  int64_t local_radius = 0;
  // LongT5 with transient-global attention: a token of the encoder also sees one global token for
  // every global_block tokens of its input (GlobalKeys, kernels/attention/attention.h). 0: none.
  int64_t global_block = 0;
  // Number of global tokens of an input.
  int64_t GlobalTokens(int64_t tokens) const {
    return global_block == 0 ? 0 : tokens / global_block;
  }
  // Number of keys that a token of the encoder sees in an input of `tokens` tokens, at most.
  int64_t EncoderKeys(int64_t tokens) const {
    const int64_t window = 2 * local_radius + 1;
    return (local_radius == 0 || tokens < window ? tokens : window) + GlobalTokens(tokens);
  }
  bool alibi_asymmetric = false;
  double rope_fraction = 1.0;
  float rope_base = 10000.0f;
  bool rope_interleaved = false;
  float rope_xpos_base = 0.0f;  // 0: no xPos
  // GPT-2: n_positions, the maximum number of positions. FAT5: max_sequence_length; xPos scaling is
  // centred at half of it. Other families: 0.
  int64_t max_positions = 0;
  int64_t fire_width = 32;
  // True if the decoder's output is multiplied by d_model^-0.5 before the language-model head (rule
  // and sources: models/README.md, "Logit scale"). For a UMT5 model with tie_word_embeddings =
  // false the answer depends on whether the files contain lm_head.weight; it is nullopt until
  // PlanWeights has checked that.
  std::optional<bool> scale_logits;
  // True if config.json sets scale_logits itself (its field scale_decoder_outputs, or the object
  // that `quintet convert` adds).
  bool scale_logits_given = false;
  std::optional<bool> tie_word_embeddings;  // value in config.json, if any
  // A warning of one sentence to print at load if the checkpoint is ambiguous about whether to
  // scale logits; else empty. Set by PlanWeights.
  std::string logit_scale_warning;

  // Dtype that was requested from `quintet convert`: "f32", "bf16", "f16", "int8" or "fp8"; empty
  // for other checkpoints. A converted checkpoint has an object `quintet` in config.json, and its
  // tensors are packed under Quintet's names (models/weights/table.h).
  std::string converted_dtype;
  bool converted() const { return !converted_dtype.empty(); }

  // Classification heads.
  int64_t labels = 2;
  LabelKind label_kind = LabelKind::kExclusive;
  std::vector<std::string> label_names;  // [labels]; "LABEL_0", ... if the file has none

  // Special token ids; -1: the model has none.
  int32_t pad_id = -1, bos_id = -1, decoder_start_id = -1;
  std::vector<int32_t> eos_ids;
};

// ReadModelConfig reads and validates directory/config.json. ParseModelConfig does the same for the
// text of such a file; `where` names the file in messages. Messages of INVALID_ARGUMENT give the
// file, the field, the expected value and the actual one. UNIMPLEMENTED names a feature that the
// engine does not support (use_randomized_position_encoding, add_cross_attention, ...).
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory);
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json, const std::string& where);

}  // namespace quintet
