#include "models/weights/fat5_names.h"

#include <string>
#include <utility>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("T5 and FAT5 names of the same tensors map to each other") {
  const std::pair<const char*, const char*> names[] = {
      {"shared.weight", "shared.weight"},
      {"lm_head.weight", "lm_head.weight"},
      {"decoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"},
      {"encoder.block.0.layer.0.SelfAttention.q.weight",
       "encoder.block.0.self_attention_layer.self_attention.Wq.weight"},
      {"encoder.block.11.layer.0.SelfAttention.o.weight",
       "encoder.block.11.self_attention_layer.self_attention.o.weight"},
      {"decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
       "decoder.block.0.self_attention_layer.self_attention.pe_encoding.relative_attention_bias."
       "weight"},
      {"encoder.block.2.layer.1.layer_norm.weight", "encoder.block.2.ff_layer.layer_norm.weight"},
      {"decoder.block.2.layer.1.layer_norm.weight",
       "decoder.block.2.cross_attention_layer.layer_norm.weight"},
      {"decoder.block.2.layer.2.layer_norm.weight", "decoder.block.2.ff_layer.layer_norm.weight"},
      {"decoder.block.1.layer.1.EncDecAttention.v.weight",
       "decoder.block.1.cross_attention_layer.cross_attention.Wv.weight"},
      {"encoder.block.1.layer.1.DenseReluDense.wi.weight",
       "encoder.block.1.ff_layer.act.wi.weight"},
      {"decoder.block.1.layer.2.DenseReluDense.wi_1.weight",
       "decoder.block.1.ff_layer.act.wi_1.weight"},
      {"decoder.block.1.layer.2.DenseReluDense.wo.weight", "decoder.block.1.ff_layer.wo.weight"}};
  for (const auto& [t5, fat5] : names) {
    INFO(t5);
    CHECK(*Fat5NameOfT5(t5) == fat5);
    CHECK(*T5NameOfFat5(fat5, Head::kLanguageModel) == t5);
  }
}

TEST_CASE("Some names map in one direction only") {
  CHECK(*T5NameOfFat5("decoder.block.3.ff_layer.wi.weight", Head::kLanguageModel) ==
        "decoder.block.3.layer.2.DenseReluDense.wi.weight");
  CHECK(*Fat5NameOfT5("transformer.encoder.final_layer_norm.weight") ==
        "encoder.final_layer_norm.weight");
  CHECK(*T5NameOfFat5("encoder.final_layer_norm.weight", Head::kTokenClassification) ==
        "transformer.encoder.final_layer_norm.weight");
  CHECK(*T5NameOfFat5("classifier.bias", Head::kTokenClassification) == "classifier.bias");
}

TEST_CASE("Tensors without a counterpart and unknown names are not mapped") {
  CHECK(Fat5NameOfT5("encoder.embed_tokens.weight")->empty());
  CHECK(T5NameOfFat5("decoder.embed_tokens.weight", Head::kNone)->empty());
  CHECK(Fat5NameOfT5("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight")
            ->empty());
  for (const char* name :
       {"", "encoder.block..layer.0.layer_norm.weight", "encoder.block.1", "encoder.block.1x.a",
        "encoder.block.0.layer.1.EncDecAttention.q.weight", "encoder.block.0.layer.0.layer_norm",
        "encoder.block.0.layer.2.DenseReluDense.wo.weight", "h.0.ln_1.weight"}) {
    INFO(name);
    CHECK(Fat5NameOfT5(name).status().code() == absl::StatusCode::kInvalidArgument);
    CHECK(T5NameOfFat5(name, Head::kNone).status().code() == absl::StatusCode::kInvalidArgument);
  }
}

ModelConfig Config(Family family) {
  ModelConfig config;
  config.family = family;
  config.heads = 4;
  config.activation = Activation::kGeluTanh;
  return config;
}

TEST_CASE("Features that the other family lacks are rejected") {
  CHECK(CheckExpressibleAsFat5(Config(Family::kT5)).ok());
  CHECK(CheckExpressibleAsFat5(Config(Family::kMT5)).ok());
  CHECK(CheckExpressibleAsT5(Config(Family::kFat5)).ok());
  for (Family family : {Family::kUMT5, Family::kGpt2, Family::kFat5}) {
    CHECK(CheckExpressibleAsFat5(Config(family)).code() == absl::StatusCode::kUnimplemented);
  }
  CHECK(CheckExpressibleAsT5(Config(Family::kT5)).code() == absl::StatusCode::kUnimplemented);

  for (Activation activation : {Activation::kSilu, Activation::kGeluErf}) {
    ModelConfig config = Config(Family::kT5);
    config.activation = activation;
    CHECK(CheckExpressibleAsFat5(config).code() == absl::StatusCode::kUnimplemented);
  }
  for (PositionEncoding position : {PositionEncoding::kNone, PositionEncoding::kAlibi,
                                    PositionEncoding::kRope, PositionEncoding::kFire}) {
    ModelConfig config = Config(Family::kFat5);
    config.position = position;
    CHECK(CheckExpressibleAsT5(config).code() == absl::StatusCode::kUnimplemented);
  }
  for (Head head : {Head::kSequenceClassification, Head::kQuestionAnswering}) {
    ModelConfig config = Config(Family::kT5);
    config.head = head;
    CHECK(CheckExpressibleAsFat5(config).code() == absl::StatusCode::kUnimplemented);
  }
}

TEST_CASE("The config.json of the other family is written") {
  ModelConfig config = Config(Family::kT5);
  config.gated = true;
  config.pad_id = 0;
  const auto t5 = nlohmann::json::parse(
      R"({"d_model": 64, "feed_forward_proj": "gated-gelu", "eos_token_id": 7,
          "scale_decoder_outputs": false, "is_gated_act": true, "id2label": {"0": "a"}})");
  const auto fat5 = Fat5ConfigOfT5(t5, config);
  CHECK(fat5["model_type"] == "flash_t5");
  CHECK(fat5["architectures"][0] == "FlashT5ForConditionalGeneration");
  CHECK(fat5["attention_scale"] == 1.0);
  CHECK(fat5["use_glu_mlp"] == true);
  CHECK(fat5["use_gelu_act"] == true);
  CHECK(fat5["tie_word_embeddings"] == false);
  CHECK(fat5["eos_token_id"] == 7);
  CHECK(fat5["pad_token_id"] == 0);
  CHECK(fat5["id2label"]["0"] == "a");
  CHECK(fat5["tokenizer_class"] == "T5Tokenizer");
  CHECK_FALSE(fat5.contains("feed_forward_proj"));
  CHECK_FALSE(fat5.contains("scale_decoder_outputs"));

  config.family = Family::kFat5;
  config.pad_id = -1;  // FAT5's default of -100
  const auto back = T5ConfigOfFat5(fat5, config, /*tied=*/true);
  CHECK(back["model_type"] == "t5");
  CHECK(back["feed_forward_proj"] == "gated-gelu");
  CHECK(back["tie_word_embeddings"] == true);
  CHECK(back["scale_decoder_outputs"] == true);
  CHECK(back["pad_token_id"] == 0);
  CHECK(back["tokenizer_class"] == "T5Tokenizer");
  CHECK_FALSE(back.contains("attention_scale"));
  auto undeclared = fat5;
  undeclared.erase("tokenizer_class");
  CHECK(T5ConfigOfFat5(undeclared, config, true)["tokenizer_class"] == "PreTrainedTokenizerFast");
  config.gated = false;
  CHECK(T5ConfigOfFat5(fat5, config, false)["feed_forward_proj"] == "gelu_new");
  config.activation = Activation::kRelu;
  CHECK(T5ConfigOfFat5(fat5, config, false)["feed_forward_proj"] == "relu");
}

}  // namespace
}  // namespace quintet
