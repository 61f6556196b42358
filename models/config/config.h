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

enum class Family : uint8_t { kT5, kMT5, kUMT5, kFat5, kGpt2 };
// config.json's model_type: "t5", "mt5", "umt5", "flash_t5", "gpt2".
const char* FamilyName(Family family);

// The output head of the checkpoint's class.
enum class Head : uint8_t {
  kNone,           // T5Model, GPT2Model
  kLanguageModel,  // ..ForConditionalGeneration, GPT2LMHeadModel
  kEncoder,        // ..EncoderModel
  kSequenceClassification,
  kTokenClassification,
  kQuestionAnswering,
};
const char* HeadName(Head head);

// Meaning of a classifier's outputs: exactly one label, any number of labels, or values
// (regression).
enum class LabelKind : uint8_t { kExclusive, kIndependent, kValues };

enum class PositionEncoding : uint8_t { kNone, kT5, kAlibi, kRope, kFire, kLearned };

struct ModelConfig {
  Family family = Family::kT5;
  Head head = Head::kLanguageModel;

  // Sizes. GPT-2: d_model = n_embd, decoder_layers = n_layer, encoder_layers = 0.
  int64_t vocab = 0;  // rows of the embedding table
  int64_t d_model = 0, head_dim = 0, heads = 0, d_ff = 0;
  int64_t encoder_layers = 0, decoder_layers = 0;
  int64_t inner() const { return heads * head_dim; }
  bool has_encoder() const { return encoder_layers > 0; }
  bool has_decoder() const { return decoder_layers > 0; }

  // Differences between families that code outside models/ depends on. Such code tests these
  // properties, not `family`.
  bool decoder_only() const { return !has_encoder(); }
  // Most positions of a sequence, prompt and new tokens together; 0: no limit.
  int64_t position_limit() const { return decoder_only() ? max_positions : 0; }
  // The classification head reads the hidden states of the input (EncodedStates): FAT5's heads,
  // token classification, and decoder-only models. Other heads read the decoder's.
  bool classifies_input() const {
    return decoder_only() || family == Family::kFat5 || head == Head::kTokenClassification;
  }
  // T5, mT5, UMT5: the head may be the embedding, and logits may be scaled (models/README.md).
  bool is_t5() const {
    return family == Family::kT5 || family == Family::kMT5 || family == Family::kUMT5;
  }

  // Forward pass.
  float norm_eps = 1e-6f;
  Activation activation = Activation::kRelu;
  bool gated = false;
  // T5: 1. FAT5: the file's value, or 1/sqrt(heads). GPT-2: 1/sqrt(head_dim), or 1 if
  // scale_attn_weights is false.
  float attention_scale = 1.0f;
  bool scale_by_inverse_layer = false;  // GPT-2: attention_scale / (layer + 1)
  PositionEncoding position = PositionEncoding::kT5;
  int64_t bias_buckets = 32, bias_max_distance = 128;
  bool bias_per_layer = false;  // UMT5: each layer has its own table
  bool alibi_asymmetric = false;
  double rope_fraction = 1.0;
  float rope_base = 10000.0f;
  bool rope_interleaved = false;
  float rope_xpos_base = 0.0f;  // 0: no xPos
  // GPT-2: n_positions, a hard limit. FAT5: max_sequence_length, the centre of RoPE's xPos. Else 0.
  int64_t max_positions = 0;
  int64_t fire_width = 32;
  // True if the decoder's output is multiplied by d_model^-0.5 before the language-model head (rule
  // and sources: models/README.md, "Logit scale"). nullopt: an untied UMT5, for which PlanWeights
  // decides by whether lm_head.weight is stored.
  std::optional<bool> scale_logits;
  // scale_logits was set by scale_decoder_outputs or by `quintet convert`.
  bool scale_logits_given = false;
  std::optional<bool> tie_word_embeddings;  // as in the file
  // Set by PlanWeights if the files leave the factor ambiguous: one sentence to print at load.
  std::string logit_scale_warning;

  // Set for checkpoints written by `quintet convert` (config.json holds a `quintet` object), whose
  // tensors are packed under Quintet's names (models/weights/table.h). The requested dtype: "f32",
  // "bf16", "f16", "int8" or "fp8"; empty if not converted.
  std::string converted_dtype;
  bool converted() const { return !converted_dtype.empty(); }

  // Heads.
  int64_t labels = 2;
  LabelKind label_kind = LabelKind::kExclusive;
  std::vector<std::string> label_names;  // [labels]; "LABEL_0", ... if the file has none

  // Special token ids; -1 if the file has none.
  int32_t pad_id = -1, bos_id = -1, decoder_start_id = -1;
  std::vector<int32_t> eos_ids;
};

// Reads and validates directory/config.json. INVALID_ARGUMENT says file, field, expected and got.
// UNIMPLEMENTED names a feature that the engine does not support (use_randomized_position_encoding,
// add_cross_attention, ...).
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory);
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json, const std::string& where);

}  // namespace quintet
