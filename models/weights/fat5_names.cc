#include "models/weights/fat5_names.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

struct NamePair {
  const char* t5;
  const char* fat5;
  bool encoder, decoder;  // whether blocks of that stack have the tensor
};

// Names of tensors within a block, in T5 and in FAT5. If FAT5 has two spellings, the first one is
// written.
constexpr NamePair kBlockNames[] = {
    {"layer.0.layer_norm", "self_attention_layer.layer_norm", true, true},
    {"layer.0.SelfAttention.q", "self_attention_layer.self_attention.Wq", true, true},
    {"layer.0.SelfAttention.k", "self_attention_layer.self_attention.Wk", true, true},
    {"layer.0.SelfAttention.v", "self_attention_layer.self_attention.Wv", true, true},
    {"layer.0.SelfAttention.o", "self_attention_layer.self_attention.o", true, true},
    {"layer.0.SelfAttention.relative_attention_bias",
     "self_attention_layer.self_attention.pe_encoding.relative_attention_bias", true, true},
    {"layer.1.layer_norm", "cross_attention_layer.layer_norm", false, true},
    {"layer.1.EncDecAttention.q", "cross_attention_layer.cross_attention.Wq", false, true},
    {"layer.1.EncDecAttention.k", "cross_attention_layer.cross_attention.Wk", false, true},
    {"layer.1.EncDecAttention.v", "cross_attention_layer.cross_attention.Wv", false, true},
    {"layer.1.EncDecAttention.o", "cross_attention_layer.cross_attention.o", false, true},
    {"layer.1.layer_norm", "ff_layer.layer_norm", true, false},
    {"layer.2.layer_norm", "ff_layer.layer_norm", false, true},
    {"layer.1.DenseReluDense.wi", "ff_layer.act.wi", true, false},
    {"layer.2.DenseReluDense.wi", "ff_layer.act.wi", false, true},
    {"layer.1.DenseReluDense.wi", "ff_layer.wi", true, false},  // FAT5's own converter
    {"layer.2.DenseReluDense.wi", "ff_layer.wi", false, true},
    {"layer.1.DenseReluDense.wi_0", "ff_layer.act.wi_0", true, false},
    {"layer.2.DenseReluDense.wi_0", "ff_layer.act.wi_0", false, true},
    {"layer.1.DenseReluDense.wi_1", "ff_layer.act.wi_1", true, false},
    {"layer.2.DenseReluDense.wi_1", "ff_layer.act.wi_1", false, true},
    {"layer.1.DenseReluDense.wo", "ff_layer.wo", true, false},
    {"layer.2.DenseReluDense.wo", "ff_layer.wo", false, true},
};

// Tensors outside of the layers that have the same name in T5 and FAT5.
constexpr const char* kCommonNames[] = {"shared.weight",
                                        "encoder.final_layer_norm.weight",
                                        "decoder.final_layer_norm.weight",
                                        "lm_head.weight",
                                        "classifier.weight",
                                        "classifier.bias"};

struct BlockName {
  bool decoder = false;
  std::string prefix;  // "encoder.block.3."
  std::string rest;    // without ".weight"
};

bool ParseBlockName(const std::string& name, BlockName* block) {
  const bool encoder = absl::StartsWith(name, "encoder.block.");
  if (!encoder && !absl::StartsWith(name, "decoder.block.")) return false;
  if (!absl::EndsWith(name, ".weight")) return false;
  size_t end = std::string("encoder.block.").size();
  const size_t digits = end;
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end]))) ++end;
  if (end == digits || name[end] != '.') return false;
  block->decoder = !encoder;
  block->prefix = name.substr(0, end + 1);
  block->rest = std::string(absl::StripSuffix(name.substr(end + 1), ".weight"));
  return true;
}

enum class Direction { kToFat5, kToT5 };

// Converts a tensor's name from T5's to FAT5's or the reverse; returns "" if the source family has
// no tensor of this name.
std::string Translate(const std::string& name, Direction direction) {
  for (const char* common : kCommonNames) {
    if (name == common) return name;
  }
  BlockName block;
  if (!ParseBlockName(name, &block)) return "";
  for (const NamePair& pair : kBlockNames) {
    if (block.decoder ? !pair.decoder : !pair.encoder) continue;
    const char* from = direction == Direction::kToFat5 ? pair.t5 : pair.fat5;
    const char* to = direction == Direction::kToFat5 ? pair.fat5 : pair.t5;
    if (block.rest == from) return absl::StrCat(block.prefix, to, ".weight");
  }
  return "";
}

bool IsSecondEmbeddingName(const std::string& name) {
  return name == "encoder.embed_tokens.weight" || name == "decoder.embed_tokens.weight";
}

// Keys of config.json with the same meaning in T5 and FAT5.
constexpr const char* kCommonKeys[] = {
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_heads",
    "num_layers",
    "num_decoder_layers",
    "layer_norm_epsilon",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "initializer_factor",
    "dropout_rate",
    "classifier_dropout",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "is_encoder_decoder",
    "use_cache",
    "num_labels",
    "id2label",
    "label2id",
    "problem_type",
    "n_positions",
    "dtype",
    "torch_dtype",
};

Json CommonConfig(const Json& source, const ModelConfig& config) {
  Json result = Json::object();
  for (const char* key : kCommonKeys) {
    if (source.contains(key)) result[key] = source[key];
  }
  // These keys are always written, because their defaults differ between T5 and FAT5.
  result["num_heads"] = config.heads;
  result["layer_norm_epsilon"] = source.value("layer_norm_epsilon", 1e-6);
  result["relative_attention_num_buckets"] = config.bias_buckets;
  result["relative_attention_max_distance"] = config.bias_max_distance;
  result["pad_token_id"] = std::max(config.pad_id, 0);
  result["decoder_start_token_id"] = std::max(config.decoder_start_id, 0);
  // The loader chooses how to read the tokenizer's files by tokenizer_class or, if that is absent,
  // by the model's family. The conversion changes the family, so always write tokenizer_class.
  const bool is_t5 = config.is_t5();
  const auto declared = source.find("tokenizer_class");
  const bool is_declared = declared != source.end() && declared->is_string();
  result["tokenizer_class"] = is_declared ? declared->get<std::string>()
                              : is_t5     ? "T5Tokenizer"
                                          : "PreTrainedTokenizerFast";
  return result;
}

std::string ArchitectureName(Head head, const char* prefix) {
  switch (head) {
    case Head::kNone:
      return absl::StrCat(prefix, "Model");
    case Head::kLanguageModel:
      return absl::StrCat(prefix, "ForConditionalGeneration");
    case Head::kEncoder:
      return absl::StrCat(prefix, "EncoderModel");
    case Head::kTokenClassification:
      return absl::StrCat(prefix, "ForTokenClassification");
    case Head::kSequenceClassification:
      return absl::StrCat(prefix, "ForSequenceClassification");
    case Head::kQuestionAnswering:
      return absl::StrCat(prefix, "ForQuestionAnswering");
  }
  return "";
}

// Returns UNIMPLEMENTED for heads that use the decoder in T5 but the encoder in FAT5: sequence
// classification and question answering.
absl::Status CheckHead(Head head) {
  if (head == Head::kSequenceClassification || head == Head::kQuestionAnswering) {
    return absl::UnimplementedError(
        absl::StrCat("head: ", HeadName(head),
                     " uses the decoder in T5 but the encoder in FAT5, so it cannot be converted"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> Fat5NameOfT5(const std::string& name) {
  const std::string bare(absl::StripPrefix(name, "transformer."));
  if (IsSecondEmbeddingName(bare)) return "";
  if (bare == "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight") return "";
  std::string result = Translate(bare, Direction::kToFat5);
  if (!result.empty()) return result;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", name, ": FAT5 has no tensor of this name"));
}

absl::StatusOr<std::string> T5NameOfFat5(const std::string& name, Head head) {
  if (IsSecondEmbeddingName(name)) return "";
  std::string result = Translate(name, Direction::kToT5);
  if (result.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", name, ": T5 has no tensor of this name"));
  }
  const bool prefixed =
      head == Head::kTokenClassification && !absl::StartsWith(name, "classifier.");
  return prefixed ? absl::StrCat("transformer.", result) : result;
}

absl::Status CheckExpressibleAsFat5(const ModelConfig& config) {
  if (config.family != Family::kT5 && config.family != Family::kMT5) {
    return absl::UnimplementedError(
        absl::StrCat("model_type: expected t5 or mt5, got ", FamilyName(config.family),
                     config.family == Family::kUMT5
                         ? " (its position bias in every layer cannot be expressed as FAT5)"
                         : ""));
  }
  if (config.activation != Activation::kGeluTanh && config.activation != Activation::kRelu) {
    return absl::UnimplementedError(
        "feed_forward_proj: FAT5 supports only tanh-GELU (gated-gelu, gelu_new) and relu");
  }
  return CheckHead(config.head);
}

absl::Status CheckExpressibleAsT5(const ModelConfig& config) {
  if (config.family != Family::kFat5) {
    return absl::UnimplementedError(
        absl::StrCat("model_type: expected flash_t5, got ", FamilyName(config.family)));
  }
  if (config.position != PositionEncoding::kT5) {
    return absl::UnimplementedError("position_encoding_type: T5 supports only t5");
  }
  return CheckHead(config.head);
}

Json Fat5ConfigOfT5(const Json& source, const ModelConfig& config) {
  Json result = CommonConfig(source, config);
  result["model_type"] = "flash_t5";
  result["architectures"] = {ArchitectureName(config.head, "FlashT5")};
  result["use_glu_mlp"] = config.gated;
  result["use_gelu_act"] = config.activation == Activation::kGeluTanh;
  result["position_encoding_type"] = "t5";
  result["use_randomized_position_encoding"] = false;
  result["attention_scale"] = 1.0;
  result["attention_type"] = "ref";
  result["attention_dropout_rate"] = 0.0;
  result["use_full_bias_size"] = false;
  result["use_masking"] = false;
  result["tie_word_embeddings"] = false;
  return result;
}

Json T5ConfigOfFat5(const Json& source, const ModelConfig& config, bool tied) {
  Json result = CommonConfig(source, config);
  result["model_type"] = "t5";
  result["architectures"] = {ArchitectureName(config.head, "T5")};
  const bool gelu = config.activation == Activation::kGeluTanh;
  if (config.gated) {
    result["feed_forward_proj"] = gelu ? "gated-gelu" : "gated-relu";  // gated-gelu is tanh-GELU
  } else {
    result["feed_forward_proj"] = gelu ? "gelu_new" : "relu";
  }
  result["tie_word_embeddings"] = tied;
  result["scale_decoder_outputs"] = tied;
  return result;
}

}  // namespace quintet
