#include "models/config/config.h"

#include <cmath>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

ModelConfig Parse(const json& config) {
  const auto parsed = ParseModelConfig(config.dump(), "config.json");
  INFO(parsed.status().message());
  REQUIRE(parsed.ok());
  return *parsed;
}

TEST_CASE("Each family has its own defaults", "[config]") {
  const ModelConfig t5 = Parse({{"model_type", "t5"}});
  CHECK(t5.family == Family::kT5);
  CHECK(t5.head == Head::kLanguageModel);
  CHECK(t5.vocab == 32128);
  CHECK(t5.d_model == 512);
  CHECK(t5.head_dim == 64);
  CHECK(t5.heads == 8);
  CHECK(t5.d_ff == 2048);
  CHECK(t5.encoder_layers == 6);
  CHECK(t5.decoder_layers == 6);
  CHECK(t5.norm_eps == 1e-6f);
  CHECK(t5.activation == Activation::kRelu);
  CHECK(!t5.gated);
  CHECK(t5.attention_scale == 1.0f);
  CHECK(t5.position == PositionEncoding::kT5);
  CHECK(t5.bias_buckets == 32);
  CHECK(t5.bias_max_distance == 128);
  CHECK(!t5.bias_per_layer);
  CHECK(t5.max_positions == 0);
  CHECK(t5.pad_id == 0);
  CHECK(t5.eos_ids == std::vector<int32_t>{1});
  CHECK(t5.decoder_start_id == 0);
  CHECK(t5.bos_id == -1);
  CHECK(!t5.converted());

  const ModelConfig umt5 = Parse({{"model_type", "umt5"}, {"num_layers", 3}});
  CHECK(umt5.vocab == 250112);
  CHECK(umt5.d_ff == 1024);
  CHECK(umt5.heads == 6);
  CHECK(umt5.decoder_layers == 3);
  CHECK(umt5.gated);
  CHECK(umt5.activation == Activation::kGeluTanh);
  CHECK(umt5.bias_per_layer);
  const ModelConfig mt5 = Parse({{"model_type", "mt5"}});
  CHECK(mt5.encoder_layers == 8);
  CHECK(!mt5.bias_per_layer);

  const ModelConfig fat5 = Parse({{"model_type", "flash_t5"}});
  CHECK(fat5.attention_scale == Approx(1 / std::sqrt(8.0)));
  CHECK(fat5.activation == Activation::kGeluTanh);
  CHECK(!fat5.gated);
  CHECK(fat5.pad_id == -1);
  CHECK(fat5.max_positions == 1024);
  CHECK(fat5.scale_logits == false);

  const ModelConfig gpt2 = Parse({{"model_type", "gpt2"}});
  CHECK(gpt2.vocab == 50257);
  CHECK(gpt2.d_model == 768);
  CHECK(gpt2.heads == 12);
  CHECK(gpt2.head_dim == 64);
  CHECK(gpt2.d_ff == 3072);
  CHECK(gpt2.decoder_layers == 12);
  CHECK(!gpt2.has_encoder());
  CHECK(gpt2.max_positions == 1024);
  CHECK(gpt2.norm_eps == 1e-5f);
  CHECK(gpt2.attention_scale == 0.125f);
  CHECK(gpt2.position == PositionEncoding::kLearned);
  CHECK(gpt2.activation == Activation::kGeluTanh);
  CHECK(gpt2.eos_ids == std::vector<int32_t>{50256});
  CHECK(gpt2.pad_id == -1);
  CHECK(gpt2.decoder_start_id == -1);
}

TEST_CASE("Code outside models/ can test properties of a config instead of its family") {
  ModelConfig config;
  config.encoder_layers = config.decoder_layers = 2;
  config.max_positions = 512;
  for (const Family family :
       {Family::kT5, Family::kMT5, Family::kUMT5, Family::kLongT5, Family::kFat5}) {
    INFO(FamilyName(family));
    config.family = family;
    config.head = Head::kSequenceClassification;
    CHECK(!config.decoder_only());
    CHECK(config.position_limit() == 0);
    CHECK(config.is_t5() == (family != Family::kFat5));
    CHECK(config.classifies_input() == (family == Family::kFat5));
    config.head = Head::kTokenClassification;
    CHECK(config.classifies_input());
  }
  config.family = Family::kGpt2;
  config.encoder_layers = 0;
  config.head = Head::kSequenceClassification;
  CHECK(config.decoder_only());
  CHECK(config.position_limit() == 512);
  CHECK(!config.is_t5());
  CHECK(config.classifies_input());
}

TEST_CASE("Every field of config.json is read", "[config]") {
  const ModelConfig t5 = Parse({{"model_type", "t5"},
                                {"vocab_size", 384},
                                {"d_model", 1472},
                                {"d_kv", 32},
                                {"d_ff", 3584},
                                {"num_heads", 6},
                                {"num_layers", 12},
                                {"num_decoder_layers", 4},
                                {"layer_norm_epsilon", 1e-5},
                                {"relative_attention_num_buckets", 16},
                                {"relative_attention_max_distance", 20},
                                {"pad_token_id", 3},
                                {"bos_token_id", nullptr},
                                {"eos_token_id", {1, 2}},
                                {"decoder_start_token_id", 250}});
  CHECK(t5.vocab == 384);
  CHECK(t5.d_model == 1472);
  CHECK(t5.inner() == 192);
  CHECK(t5.encoder_layers == 12);
  CHECK(t5.decoder_layers == 4);
  CHECK(t5.norm_eps == 1e-5f);
  CHECK(t5.bias_buckets == 16);
  CHECK(t5.bias_max_distance == 20);
  CHECK(t5.pad_id == 3);
  CHECK(t5.eos_ids == std::vector<int32_t>{1, 2});
  CHECK(t5.decoder_start_id == 250);

  const ModelConfig gpt2 = Parse({{"model_type", "gpt2"},
                                  {"hidden_size", 96},
                                  {"num_attention_heads", 3},
                                  {"num_hidden_layers", 2},
                                  {"max_position_embeddings", 77},
                                  {"n_inner", 200},
                                  {"vocab_size", 100},
                                  {"activation_function", "gelu"},
                                  {"scale_attn_weights", false},
                                  {"scale_attn_by_inverse_layer_idx", true},
                                  {"reorder_and_upcast_attn", true},
                                  {"architectures", {"GPT2ForSequenceClassification"}},
                                  {"pad_token_id", 5},
                                  {"num_labels", 4}});
  CHECK(gpt2.d_model == 96);
  CHECK(gpt2.head_dim == 32);
  CHECK(gpt2.decoder_layers == 2);
  CHECK(gpt2.max_positions == 77);
  CHECK(gpt2.d_ff == 200);
  CHECK(gpt2.activation == Activation::kGeluErf);
  CHECK(gpt2.attention_scale == 1.0f);
  CHECK(gpt2.scale_by_inverse_layer);
  CHECK(gpt2.head == Head::kSequenceClassification);
  CHECK(gpt2.pad_id == 5);
  CHECK(gpt2.labels == 4);
  CHECK(gpt2.label_names == std::vector<std::string>{"LABEL_0", "LABEL_1", "LABEL_2", "LABEL_3"});
  CHECK(gpt2.eos_ids.empty());
}

TEST_CASE("LongT5's attention is read, with its defaults and bounds", "[config]") {
  const ModelConfig plain = Parse({{"model_type", "longt5"}});
  CHECK(plain.family == Family::kLongT5);
  CHECK(plain.vocab == 32128);
  CHECK(plain.encoder_layers == 6);
  CHECK(plain.activation == Activation::kRelu);
  CHECK(!plain.gated);
  CHECK(plain.position == PositionEncoding::kT5);
  CHECK(plain.attention_scale == 1.0f);
  CHECK(plain.local_radius == 127);
  CHECK(plain.global_block == 0);  // local attention
  CHECK(plain.GlobalTokens(1000) == 0);
  CHECK(plain.EncoderKeys(100) == 100);
  CHECK(plain.EncoderKeys(1000) == 255);

  json fields = {{"model_type", "longt5"}, {"encoder_attention_type", "transient-global"}};
  CHECK(Parse(fields).global_block == 16);
  fields.update({{"local_radius", 5}, {"global_block_size", 3}});
  CHECK(Parse(fields).local_radius == 5);
  CHECK(Parse(fields).global_block == 3);
  CHECK(Parse(fields).GlobalTokens(2) == 0);
  CHECK(Parse(fields).GlobalTokens(11) == 3);
  CHECK(Parse(fields).EncoderKeys(1000) == 11 + 333);
  fields.update({{"local_radius", 1 << 24}, {"global_block_size", 1 << 24}});
  CHECK(Parse(fields).EncoderKeys(1000) == 1000);
  CHECK(Parse({{"model_type", "t5"}, {"local_radius", 5}}).local_radius == 0);

  const struct {
    const char* field;
    json value;
    const char* message;
  } bad[] = {
      {"local_radius", 0, "local_radius: expected an integer from 1 to 16777216, got 0"},
      {"local_radius", -1, "local_radius: expected an integer from 1 to 16777216, got -1"},
      {"local_radius", 1e30, "local_radius: expected an integer from 1 to 16777216"},
      {"local_radius", (1 << 24) + 1, "local_radius: expected an integer from 1 to 16777216"},
      {"global_block_size", 0, "global_block_size: expected an integer from 1 to 16777216, got 0"},
      {"global_block_size", "16", "global_block_size: expected an integer"},
      {"global_block_size", int64_t{1} << 62, "global_block_size: expected an integer"},
      {"encoder_attention_type", "global",
       "encoder_attention_type: expected local or transient-global, got \"global\""},
      {"encoder_attention_type", 1, "encoder_attention_type: expected a string"},
      {"architectures",
       {"LongT5ForSequenceClassification"},
       "class LongT5ForSequenceClassification of model_type longt5 is not supported"},
      {"architectures",
       {"T5ForConditionalGeneration"},
       "class T5ForConditionalGeneration of model_type longt5 is not supported"},
  };
  for (const auto& c : bad) {
    json config = {{"model_type", "longt5"}, {"encoder_attention_type", "transient-global"}};
    config[c.field] = c.value;
    const auto parsed = ParseModelConfig(config.dump(), "config.json");
    INFO(config.dump());
    REQUIRE(!parsed.ok());
    CHECK_THAT(Message(parsed.status()), ContainsSubstring(c.message));
  }
}

TEST_CASE("FAT5's position encodings are read with their parameters", "[config]") {
  json base = {{"model_type", "flash_t5"}, {"d_kv", 32}, {"attention_scale", 1.0}};
  json rope = base;
  rope.update({{"position_encoding_type", "RoPE"},
               {"rotary_emb_fraction", 0.5},
               {"rotary_base", 500},
               {"rotary_interleaved", true},
               {"rotary_scale_base", 512},
               {"max_sequence_length", 256},
               {"use_randomized_position_encoding", true}});
  const ModelConfig r = Parse(rope);
  CHECK(r.position == PositionEncoding::kRope);
  CHECK(r.rope_fraction == 0.5);
  CHECK(r.rope_base == 500.0f);
  CHECK(r.rope_interleaved);
  CHECK(r.rope_xpos_base == 512.0f);
  CHECK(r.max_positions == 256);
  CHECK(r.attention_scale == 1.0f);
  json alibi = base;
  alibi.update({{"position_encoding_type", "ALiBi"}, {"alibi_mode", "asymetric"}});
  CHECK(Parse(alibi).position == PositionEncoding::kAlibi);
  CHECK(Parse(alibi).alibi_asymmetric);
  json fire = base;
  fire.update({{"position_encoding_type", "FIRE"}, {"fire_mlp_width", 16}});
  CHECK(Parse(fire).position == PositionEncoding::kFire);
  CHECK(Parse(fire).fire_width == 16);
  for (const char* other : {"none", "T5", "alibi", "rope", ""}) {
    json none = base;
    none["position_encoding_type"] = other;
    CHECK(Parse(none).position == PositionEncoding::kNone);
  }
  json plain = base;
  plain.update(
      {{"use_glu_mlp", true}, {"use_gelu_act", false}, {"feed_forward_proj", "gated-silu"}});
  CHECK(Parse(plain).gated);
  CHECK(Parse(plain).activation == Activation::kRelu);
}

TEST_CASE("feed_forward_proj names the activation", "[config]") {
  const struct {
    json fields;
    Activation activation;
    bool gated;
  } cases[] = {
      {{{"feed_forward_proj", "relu"}}, Activation::kRelu, false},
      {{{"feed_forward_proj", "gated-gelu"}}, Activation::kGeluTanh, true},
      {{{"feed_forward_proj", "gated-gelu"}, {"dense_act_fn", "relu"}, {"is_gated_act", false}},
       Activation::kRelu,
       false},
      {{{"feed_forward_proj", "gated-gelu"}, {"dense_act_fn", "silu"}}, Activation::kSilu, true},
      {{{"is_gated_act", true}}, Activation::kRelu, true},
      {{{"feed_forward_proj", "gelu"}}, Activation::kGeluErf, false},
      {{{"feed_forward_proj", "gelu_new"}}, Activation::kGeluTanh, false},
      {{{"feed_forward_proj", "gated-relu"}}, Activation::kRelu, true},
      {{{"feed_forward_proj", "gated-silu"}}, Activation::kSilu, true},
      {{{"feed_forward_proj", "gated-gelu_new"}}, Activation::kGeluTanh, true},
      {{{"dense_act_fn", "silu"}, {"is_gated_act", true}}, Activation::kSilu, true},
  };
  for (const auto& c : cases) {
    json config = {{"model_type", "t5"}};
    config.update(c.fields);
    INFO(config.dump());
    CHECK(Parse(config).activation == c.activation);
    CHECK(Parse(config).gated == c.gated);
  }
  const json multilingual = {{"model_type", "mt5"}, {"dense_act_fn", "silu"}};  // gated by default
  CHECK(Parse(multilingual).activation == Activation::kSilu);
  CHECK(Parse(multilingual).gated);
}

TEST_CASE("The class name in architectures determines the head", "[config]") {
  const struct {
    const char* type;
    const char* name;
    Head head;
    bool decoder;
  } cases[] = {
      {"t5", "T5Model", Head::kNone, true},
      {"t5", "T5ForConditionalGeneration", Head::kLanguageModel, true},
      {"t5", "T5EncoderModel", Head::kEncoder, false},
      {"t5", "T5ForSequenceClassification", Head::kSequenceClassification, true},
      {"t5", "T5ForTokenClassification", Head::kTokenClassification, false},
      {"t5", "T5ForQuestionAnswering", Head::kQuestionAnswering, true},
      {"mt5", "MT5EncoderModel", Head::kEncoder, false},
      {"mt5", "T5ForConditionalGeneration", Head::kLanguageModel, true},
      {"umt5", "UMT5ForTokenClassification", Head::kTokenClassification, false},
      {"longt5", "LongT5Model", Head::kNone, true},
      {"longt5", "LongT5ForConditionalGeneration", Head::kLanguageModel, true},
      {"longt5", "LongT5EncoderModel", Head::kEncoder, false},
      {"flash_t5", "FlashT5Model", Head::kNone, true},
      {"flash_t5", "FlashT5ForConditionalGeneration", Head::kLanguageModel, true},
      {"flash_t5", "FlashT5EncoderModel", Head::kEncoder, false},
      {"flash_t5", "FlashT5ForSequenceClassification", Head::kSequenceClassification, false},
      {"flash_t5", "FlashT5ForTokenClassification", Head::kTokenClassification, false},
      {"flash_t5", "FlashT5ForQuestionAnswering", Head::kQuestionAnswering, false},
      {"gpt2", "GPT2Model", Head::kNone, true},
      {"gpt2", "GPT2LMHeadModel", Head::kLanguageModel, true},
  };
  for (const auto& c : cases) {
    INFO(c.type << " " << c.name);
    const ModelConfig config = Parse({{"model_type", c.type}, {"architectures", {c.name}}});
    CHECK(config.head == c.head);
    CHECK(config.has_decoder() == c.decoder);
  }
}

TEST_CASE("Logits are scaled as scale_decoder_outputs and tie_word_embeddings say", "[config]") {
  const auto scale = [](json fields) { return Parse(fields).scale_logits; };
  const std::optional<bool> open;  // depends on whether lm_head.weight is stored
  CHECK(scale({{"model_type", "t5"},
               {"scale_decoder_outputs", true},
               {"tie_word_embeddings", false}}) == true);
  CHECK(scale({{"model_type", "t5"},
               {"scale_decoder_outputs", false},
               {"tie_word_embeddings", true}}) == false);
  CHECK(scale({{"model_type", "t5"}, {"tie_word_embeddings", false}}) == false);
  CHECK(scale({{"model_type", "t5"}, {"tie_word_embeddings", true}}) == true);
  CHECK(scale({{"model_type", "t5"}, {"tie_word_embeddings", nullptr}}) == true);
  CHECK(scale({{"model_type", "t5"}}) == true);
  CHECK(scale({{"model_type", "longt5"}, {"tie_word_embeddings", false}}) == false);
  CHECK(scale({{"model_type", "longt5"}}) == true);
  CHECK(scale({{"model_type", "longt5"},
               {"scale_decoder_outputs", false},
               {"tie_word_embeddings", true}}) == false);
  CHECK(scale({{"model_type", "mt5"}, {"tie_word_embeddings", true}}) == false);
  CHECK(scale({{"model_type", "mt5"}, {"scale_decoder_outputs", true}}) == true);
  CHECK(scale({{"model_type", "umt5"}, {"tie_word_embeddings", false}}) == open);
  CHECK(scale({{"model_type", "umt5"}, {"tie_word_embeddings", true}}) == true);
  CHECK(scale({{"model_type", "umt5"}}) == true);
  CHECK(scale({{"model_type", "umt5"},
               {"scale_decoder_outputs", false},
               {"tie_word_embeddings", true}}) == false);
  CHECK(scale({{"model_type", "flash_t5"}, {"scale_decoder_outputs", true}}) == false);
  CHECK(scale({{"model_type", "gpt2"}}) == false);
  CHECK(scale({{"model_type", "t5"}, {"architectures", {"T5EncoderModel"}}}) == false);
  const json converted = {{"format", 1}, {"dtype", "int8"}, {"scale_logits", true}};
  CHECK(scale({{"model_type", "mt5"}, {"quintet", converted}}) == true);
  CHECK(Parse({{"model_type", "mt5"}, {"quintet", converted}}).converted_dtype == "int8");
}

TEST_CASE("Labels and their kind come from id2label, num_labels and problem_type", "[config]") {
  const json seqcls = {{"model_type", "t5"}, {"architectures", {"T5ForSequenceClassification"}}};
  json named = seqcls;
  named["id2label"] = {{"0", "no"}, {"1", "yes"}, {"2", 7}};
  named["num_labels"] = 9;
  CHECK(Parse(named).labels == 3);
  CHECK(Parse(named).label_names == std::vector<std::string>{"no", "yes", "7"});
  CHECK(Parse(seqcls).labels == 2);

  const auto kind = [&](int64_t labels, const char* problem) {
    json config = seqcls;
    config["num_labels"] = labels;
    if (problem != nullptr) config["problem_type"] = problem;
    return Parse(config).label_kind;
  };
  CHECK(kind(3, nullptr) == LabelKind::kExclusive);
  CHECK(kind(3, "single_label_classification") == LabelKind::kExclusive);
  CHECK(kind(3, "multi_label_classification") == LabelKind::kIndependent);
  CHECK(kind(1, nullptr) == LabelKind::kIndependent);
  CHECK(kind(1, "single_label_classification") == LabelKind::kIndependent);
  CHECK(kind(1, "regression") == LabelKind::kValues);
}

TEST_CASE("Invalid configurations are rejected", "[config]") {
  const struct {
    const char* fields;
    const char* message;
  } cases[] = {
      {R"({"d_model":"512"})", R"(d_model: expected an integer from 1 to 65536, got "512")"},
      {R"({"d_model":512.0})", "d_model: expected an integer from 1 to 65536, got 512.0"},
      {R"({"d_model":0})", "d_model: expected an integer from 1 to 65536, got 0"},
      {R"({"d_model":-512})", "d_model: expected an integer"},
      {R"({"d_model":18446744073709551615})", "d_model: expected an integer"},
      {R"({"d_model":1e300})", "d_model: expected an integer"},
      {R"({"d_model":true})", "got a boolean"},
      {R"({"d_model":[512]})", "got a list"},
      {R"({"d_model":{}})", "got an object"},
      {R"({"d_model":512,"hidden_size":256})", "hidden_size: is 256, but its alias d_model is 512"},
      {R"({"d_kv":0})", "d_kv"},
      {R"({"d_kv":1000000})", "d_kv"},
      {R"({"num_heads":4096,"d_kv":256})", "num_heads * d_kv of at most 65536, got 1048576"},
      {R"({"num_heads":-1})", "num_heads"},
      {R"({"d_ff":0})", "d_ff"},
      {R"({"num_layers":0})", "num_layers"},
      {R"({"num_layers":100000})", "num_layers"},
      {R"({"num_decoder_layers":0})", "num_decoder_layers"},
      {R"({"vocab_size":0})", "vocab_size"},
      {R"({"vocab_size":2147483648})", "vocab_size"},
      {R"({"layer_norm_epsilon":0})", "layer_norm_epsilon"},
      {R"({"layer_norm_epsilon":-1e-6})", "layer_norm_epsilon"},
      {R"({"layer_norm_epsilon":"1e-6"})", "layer_norm_epsilon"},
      {R"({"layer_norm_epsilon":NaN})", "not JSON"},
      {R"({"layer_norm_epsilon":1e999})", "config.json"},
      {R"({"relative_attention_num_buckets":2})", "relative_attention_num_buckets"},
      {R"({"relative_attention_max_distance":16})",
       "relative_attention_max_distance: expected more than half"},
      {R"({"relative_attention_max_distance":100000000})", "relative_attention_max_distance"},
      {R"({"feed_forward_proj":"gated-gelu-x"})", "expected NAME or gated-NAME"},
      {R"({"feed_forward_proj":"gated-"})", "expected NAME or gated-NAME"},
      {R"({"feed_forward_proj":"other-gelu"})", "expected NAME or gated-NAME"},
      {R"({"feed_forward_proj":1})", "feed_forward_proj: expected a string"},
      {R"({"tie_word_embeddings":1})", "tie_word_embeddings: expected true or false, got 1"},
      {R"({"scale_decoder_outputs":"no"})", "scale_decoder_outputs"},
      {R"({"architectures":"T5Model"})", "architectures"},
      {R"({"architectures":[7]})", "architectures"},
      {R"({"eos_token_id":32128})", "eos_token_id: expected an integer from 0 to 32127"},
      {R"({"eos_token_id":[1,-1]})", "eos_token_id: expected ids from 0 to 32127, got -1"},
      {R"({"eos_token_id":[1,"2"]})", "eos_token_id"},
      {R"({"eos_token_id":1.5})", "eos_token_id"},
      {R"({"pad_token_id":40000})", "pad_token_id"},
      {R"({"pad_token_id":-99999999999})", "pad_token_id"},
      {R"({"decoder_start_token_id":-1})", "decoder_start_token_id"},
      {R"({"num_labels":0})", "num_labels"},
      {R"({"id2label":[]})", "id2label"},
      {R"({"id2label":{}})", "id2label"},
      {R"({"id2label":{"0":"a","2":"b"}})", "id 1 has none"},
      {R"({"id2label":{"0":{}}})", "id 0 has none"},
      {R"({"problem_type":"ranking"})", "problem_type: expected regression"},
      {R"({"problem_type":1})", "problem_type: expected a string"},
      {R"({"architectures":["T5ForQuestionAnswering"],"num_labels":3})",
       "question answering has 2 outputs"},
      {R"({"model_type":"gpt2","n_head":5})", "n_head: expected a divisor of n_embd 768, got 5"},
      {R"({"model_type":"gpt2","n_embd":2048,"n_head":1})", "heads of at most 256"},
      {R"({"model_type":"gpt2","n_embd":65536,"n_head":64})", "4 n_embd of at most 65536"},
      {R"({"model_type":"gpt2","n_positions":0})", "n_positions"},
      {R"({"model_type":"gpt2","n_inner":-1})", "n_inner"},
      {R"({"model_type":"gpt2","scale_attn_weights":"yes"})", "scale_attn_weights"},
      {R"({"model_type":"gpt2","reorder_and_upcast_attn":2})", "reorder_and_upcast_attn"},
      {R"({"model_type":"flash_t5","attention_scale":0})", "attention_scale"},
      {R"({"model_type":"flash_t5","attention_scale":-1})", "attention_scale"},
      {R"({"model_type":"flash_t5","attention_scale":"1"})", "attention_scale"},
      {R"({"model_type":"flash_t5","position_encoding_type":1})", "position_encoding_type"},
      {R"({"model_type":"flash_t5","position_encoding_type":"ALiBi","alibi_mode":"symmetric"})",
       "alibi_mode"},
      {R"({"model_type":"flash_t5","position_encoding_type":"ALiBi",)"
       R"("alibi_mode":"asymetric","num_heads":3})",
       "asymmetric ALiBi needs an even number, got 3"},
      {R"({"model_type":"flash_t5","position_encoding_type":"RoPE","rotary_emb_fraction":0})",
       "rotated channels"},
      {R"({"model_type":"flash_t5","position_encoding_type":"RoPE",)"
       R"("d_kv":18,"rotary_emb_fraction":0.5})",
       "even number of rotated channels, got 9"},
      {R"({"model_type":"flash_t5","position_encoding_type":"RoPE","rotary_emb_fraction":1.5})",
       "rotary_emb_fraction"},
      {R"({"model_type":"flash_t5","position_encoding_type":"RoPE","rotary_base":0})",
       "rotary_base"},
      {R"({"model_type":"flash_t5","position_encoding_type":"RoPE","rotary_scale_base":-1})",
       "rotary_scale_base"},
      {R"({"model_type":"flash_t5","position_encoding_type":"FIRE","fire_mlp_width":0})",
       "fire_mlp_width"},
      {R"({"model_type":"flash_t5","max_sequence_length":0})", "max_sequence_length"},
      {R"({"model_type":7})", "model_type: expected a string"},
      {R"({"model_type":null})", "model_type: expected t5"},
      {R"({"quintet":1})", "quintet: expected an object"},
      {R"({"quintet":{"format":1,"dtype":"int4","scale_logits":true}})", "quintet: dtype"},
      {R"({"quintet":{"format":1,"dtype":"f32"}})", "quintet: scale_logits"},
      {R"({"quintet":{"format":"1","dtype":"f32","scale_logits":true}})", "quintet: format"},
  };
  for (const auto& c : cases) {
    INFO(c.fields);
    std::string text = c.fields;
    if (!absl::StrContains(text, "model_type")) text.insert(1, R"("model_type":"t5",)");
    const auto parsed = ParseModelConfig(text, "config.json");
    REQUIRE(!parsed.ok());
    CHECK(absl::IsInvalidArgument(parsed.status()));
    CHECK_THAT(Message(parsed.status()), ContainsSubstring("config.json"));
    CHECK_THAT(Message(parsed.status()), ContainsSubstring(c.message));
  }
}

TEST_CASE("Features that the engine does not compute are UNIMPLEMENTED", "[config]") {
  for (const char* text :
       {R"({"model_type":"bart"})", R"({"model_type":"t5","feed_forward_proj":"gated-mish"})",
        R"({"model_type":"t5","dense_act_fn":"mish"})",
        R"({"model_type":"gpt2","activation_function":"quick_gelu"})",
        R"({"model_type":"gpt2","add_cross_attention":true})",
        R"({"model_type":"gpt2","architectures":["GPT2DoubleHeadsModel"]})",
        R"({"model_type":"t5","architectures":["BartModel"]})",
        R"({"model_type":"flash_t5","architectures":["T5Model"]})",
        R"({"model_type":"flash_t5","use_randomized_position_encoding":true})",
        R"({"model_type":"flash_t5","position_encoding_type":"ALiBi",)"
        R"("use_randomized_position_encoding":true})",
        R"({"model_type":"t5","quantization_config":{"bits":4}})",
        R"({"model_type":"t5","quintet":{"format":2,"dtype":"f32","scale_logits":true}})"}) {
    INFO(text);
    CHECK(absl::IsUnimplemented(ParseModelConfig(text, "config.json").status()));
  }
}

TEST_CASE("Text that is not a JSON object is rejected", "[config]") {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"),
        std::string("\xff\xfe"), std::string(100000, '['),
        std::string(R"({"model_type":"t5","model_type":"t5"})")}) {
    const auto parsed = ParseModelConfig(text, "config.json");
    CHECK(absl::IsInvalidArgument(parsed.status()));
    CHECK_THAT(Message(parsed.status()), ContainsSubstring("config.json"));
  }
  TemporaryDirectory directory;
  CHECK(absl::IsNotFound(ReadModelConfig(directory.path()).status()));
  const std::string whole = R"({"model_type":"t5","num_layers":2,"architectures":["T5Model"]})";
  for (size_t n = 0; n < whole.size(); ++n) {
    WriteBytes(directory / "config.json", whole.substr(0, n));
    CHECK(absl::IsInvalidArgument(ReadModelConfig(directory.path()).status()));
  }
  WriteBytes(directory / "config.json", whole);
  CHECK(ReadModelConfig(directory.path()).ok());
}

}  // namespace
}  // namespace quintet
