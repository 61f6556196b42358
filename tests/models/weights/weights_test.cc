#include "models/weights/weights.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "models/weights/table.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/checkpoint/loadable_checkpoint.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;
using nlohmann::json;

std::vector<float> Transposed(const TestTensor& t) {
  const auto rows = static_cast<size_t>(t.shape[0]), columns = static_cast<size_t>(t.shape[1]);
  std::vector<float> out(t.values.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) out[c * rows + r] = t.values[r * columns + c];
  }
  return out;
}

TEST_CASE("Every golden checkpoint loads", "[weights]") {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDirectory(""))) {
    const std::string directory = entry.path().string();
    INFO(directory);
    ThreadPool pool(2);
    auto config = ReadModelConfig(directory);
    REQUIRE(config.ok());
    for (WeightType type : {WeightType::kF32, WeightType::kI8}) {
      const auto weights = LoadWeights(directory, &*config, {.type = type}, &pool);
      INFO(weights.status().message());
      REQUIRE(weights.ok());
      CHECK(weights->encoder.layers.size() == static_cast<size_t>(config->encoder_layers));
      CHECK(weights->decoder.layers.size() == static_cast<size_t>(config->decoder_layers));
      CHECK(weights->parameters > 0);
      CHECK(weights->bytes > weights->parameters);
      CHECK(config->scale_logits.has_value());
    }
    ++cases;
  }
  CHECK(cases >= 34);
}

TEST_CASE("LongT5's tensors are packed into their fields", "[weights]") {
  Checkpoint c("longt5-tglobal");
  const auto w = c.Load();
  REQUIRE(w.ok());
  const auto& t = c.tensors;
  const std::string self = ".layer.0.TransientGlobalSelfAttention.";
  const LayerWeights& e = w->encoder.layers[1];
  CHECK(Rows(e.qkv, 32, 32) == t.at("encoder.block.1" + self + "k.weight").values);
  CHECK(Values(e.global_norm) ==
        t.at("encoder.block.1" + self + "global_input_layer_norm.weight").values);
  const LayerWeights& d = w->decoder.layers[1];
  CHECK(Rows(d.qkv, 32, 32) == t.at("decoder.block.1.layer.0.SelfAttention.k.weight").values);
  CHECK(!d.global_norm.defined());
  CHECK(d.global_bias.kind == BiasKind::kNone);

  // The bias of the global tokens has T5's buckets of both directions, and a table of its own.
  const std::vector<float>& buckets =
      t.at("encoder.block.0" + self + "global_relative_attention_bias.weight").values;
  const PositionBias& bias = e.global_bias;
  REQUIRE(bias.kind == BiasKind::kTable);
  CHECK(bias.table.data == w->encoder.layers[0].global_bias.table.data);
  CHECK(bias.saturation == e.bias.saturation);
  const auto at = [&](int64_t head, int64_t difference) {
    return bias.table.f32()[head * bias.table.stride[0] + bias.saturation + difference];
  };
  for (int64_t h = 0; h < 4; ++h) {
    CHECK(at(h, 0) == buckets[static_cast<size_t>(h)]);
    CHECK(at(h, -3) == buckets[static_cast<size_t>(3 * 4 + h)]);
    CHECK(at(h, 3) == buckets[static_cast<size_t>((16 + 3) * 4 + h)]);
    CHECK(at(h, bias.saturation) == buckets[static_cast<size_t>(31 * 4 + h)]);
  }
}

TEST_CASE("LongT5's tensors must fit the kind of attention", "[weights]") {
  const std::string self = "encoder.block.0.layer.0.TransientGlobalSelfAttention.";
  Checkpoint local("longt5-tglobal");
  local.config["encoder_attention_type"] = "local";
  CHECK_THAT(Message(local.Load().status()),
             ContainsSubstring("missing: encoder.block.0.layer.0.LocalSelfAttention."));
  Checkpoint t5("longt5-tglobal");
  t5.config["model_type"] = "t5";
  t5.config["architectures"] = {"T5ForConditionalGeneration"};
  CHECK_THAT(Message(t5.Load().status()), ContainsSubstring("unexpected: " + self));
  Checkpoint shape("longt5-tglobal");
  shape.tensors.at(self + "global_relative_attention_bias.weight").shape = {16, 8};
  CHECK_THAT(Message(shape.Load().status()),
             ContainsSubstring("global_relative_attention_bias.weight is BF16 [16, 8], expected "
                               "[32, 4]"));
  Checkpoint norm("longt5-tglobal");
  norm.tensors.erase(self + "global_input_layer_norm.weight");
  CHECK_THAT(Message(norm.Load().status()),
             ContainsSubstring("missing: " + self + "global_input_layer_norm.weight"));
}

TEST_CASE("T5's tensors are packed into their fields", "[weights]") {
  Checkpoint c("t5-v1_1");
  const auto w = c.Load();
  REQUIRE(w.ok());
  const auto& t = c.tensors;
  const int64_t inner = 192, d_ff = 192;
  CHECK(w->embedding.dtype == DType::kBF16);
  CHECK(Values(w->embedding) == t.at("shared.weight").values);
  CHECK(Rows(w->head, 0, 256) == t.at("lm_head.weight").values);
  const std::string encoder = "encoder.block.1.layer.", decoder = "decoder.block.1.layer.";
  const LayerWeights& e = w->encoder.layers[1];
  CHECK(Rows(e.qkv, 0, inner) == t.at(encoder + "0.SelfAttention.q.weight").values);
  CHECK(Rows(e.qkv, inner, inner) == t.at(encoder + "0.SelfAttention.k.weight").values);
  CHECK(Rows(e.qkv, 2 * inner, inner) == t.at(encoder + "0.SelfAttention.v.weight").values);
  CHECK(Rows(e.attention_out, 0, 128) == t.at(encoder + "0.SelfAttention.o.weight").values);
  CHECK(Values(e.attention_norm) == t.at(encoder + "0.layer_norm.weight").values);
  CHECK(Values(e.ffn_norm) == t.at(encoder + "1.layer_norm.weight").values);
  CHECK(e.ffn_in.gated());
  CHECK(Rows(e.ffn_in, 0, d_ff) == t.at(encoder + "1.DenseReluDense.wi_0.weight").values);
  CHECK(Rows(e.ffn_in, d_ff, d_ff) == t.at(encoder + "1.DenseReluDense.wi_1.weight").values);
  CHECK(Rows(e.ffn_out, 0, 128) == t.at(encoder + "1.DenseReluDense.wo.weight").values);
  const LayerWeights& d = w->decoder.layers[1];
  CHECK(Rows(d.cross_q, 0, inner) == t.at(decoder + "1.EncDecAttention.q.weight").values);
  CHECK(Rows(d.cross_out, 0, 128) == t.at(decoder + "1.EncDecAttention.o.weight").values);
  CHECK(Values(d.cross_norm) == t.at(decoder + "1.layer_norm.weight").values);
  CHECK(Values(d.ffn_norm) == t.at(decoder + "2.layer_norm.weight").values);
  CHECK(Rows(d.ffn_out, 0, 128) == t.at(decoder + "2.DenseReluDense.wo.weight").values);
  CHECK(w->cross_kv.n() == 4 * inner);
  for (int64_t layer : {0, 1}) {
    const std::string cross = absl::StrCat("decoder.block.", layer, ".layer.1.EncDecAttention.");
    CHECK(Rows(w->cross_kv, 2 * layer * inner, inner) == t.at(cross + "k.weight").values);
    CHECK(Rows(w->cross_kv, (2 * layer + 1) * inner, inner) == t.at(cross + "v.weight").values);
  }
  CHECK(Values(w->encoder.final_norm) == t.at("encoder.final_layer_norm.weight").values);
  CHECK(Values(w->decoder.final_norm) == t.at("decoder.final_layer_norm.weight").values);
  CHECK(w->logit_scale == 1.0f);

  // T5 has one table of relative position biases in the encoder and one in the decoder. All layers
  // of a stack share its table.
  const auto& table = t.at("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight");
  const PositionBias& bias = d.bias;
  REQUIRE(bias.kind == BiasKind::kTable);
  CHECK(bias.table.data == w->decoder.layers[0].bias.table.data);
  CHECK(bias.saturation == 113);
  CHECK(e.bias.saturation == 91);
  CHECK(bias.table.f32()[2 * 227 + 113 - 7] == table.values[7 * 3 + 2]);

  int64_t parameters = 0;
  for (const auto& [name, tensor] : t) parameters += static_cast<int64_t>(tensor.values.size());
  CHECK(w->parameters == parameters);
}

TEST_CASE("FAT5's tensors are packed into their fields", "[weights]") {
  Checkpoint c("fat5-fire-32");
  const auto w = c.Load();
  REQUIRE(w.ok());
  const auto& t = c.tensors;
  const std::string block = "decoder.block.1.";
  const LayerWeights& d = w->decoder.layers[1];
  CHECK(Rows(d.qkv, 64, 64) ==
        t.at(block + "self_attention_layer.self_attention.Wk.weight").values);
  CHECK(Rows(d.ffn_in, 80, 80) == t.at(block + "ff_layer.act.wi_1.weight").values);
  CHECK(Rows(w->cross_kv, 192, 64) ==
        t.at(block + "cross_attention_layer.cross_attention.Wv.weight").values);
  CHECK(Values(d.ffn_norm) == t.at(block + "ff_layer.layer_norm.weight").values);
  REQUIRE(d.bias.kind == BiasKind::kFire);
  const std::string fire = "decoder.block.0.self_attention_layer.self_attention.pe_encoding.";
  CHECK(d.bias.fire_c == t.at(fire + "c").values[0]);
  CHECK(d.bias.fire_threshold ==
        std::fabs(t.at(fire + "L_multiplier").values[0] * t.at(fire + "init_L").values[0]));
}

TEST_CASE("GPT-2's tensors are transposed", "[weights]") {
  Checkpoint c("gpt2-variant");
  const auto w = c.Load();
  REQUIRE(w.ok());
  const auto& t = c.tensors;
  const std::string block = "transformer.h.2.";
  const LayerWeights& l = w->decoder.layers[2];
  CHECK(Rows(l.qkv, 0, 288) == Transposed(t.at(block + "attn.c_attn.weight")));
  CHECK(Rows(l.attention_out, 0, 96) == Transposed(t.at(block + "attn.c_proj.weight")));
  CHECK(Rows(l.ffn_in, 0, 200) == Transposed(t.at(block + "mlp.c_fc.weight")));
  CHECK(Rows(l.ffn_out, 0, 96) == Transposed(t.at(block + "mlp.c_proj.weight")));
  CHECK(Values(l.qkv_bias) == t.at(block + "attn.c_attn.bias").values);
  CHECK(Values(l.attention_out_bias) == t.at(block + "attn.c_proj.bias").values);
  CHECK(Values(l.ffn_in_bias) == t.at(block + "mlp.c_fc.bias").values);
  CHECK(Values(l.ffn_out_bias) == t.at(block + "mlp.c_proj.bias").values);
  CHECK(Values(l.attention_norm) == t.at(block + "ln_1.weight").values);
  CHECK(Values(l.ffn_norm_beta) == t.at(block + "ln_2.bias").values);
  CHECK(Values(w->decoder.final_norm_beta) == t.at("transformer.ln_f.bias").values);
  CHECK(w->embedding.dtype == DType::kF16);
  CHECK(Values(w->position_embedding) == t.at("transformer.wpe.weight").values);
  CHECK(Rows(w->head, 0, 257) == t.at("transformer.wte.weight").values);
}

TEST_CASE("Wide transposed weights are read in blocks", "[weights]") {
  Checkpoint c("gpt2");
  c.config["n_inner"] = 5000;
  c.config["n_embd"] = 128;
  for (auto& [name, tensor] : c.tensors) {
    if (name.find("mlp.") == std::string::npos || name.find("c_proj.bias") != std::string::npos)
      continue;
    for (int64_t& d : tensor.shape) d = d == 512 ? 5000 : d;
    int64_t n = 1;
    for (int64_t d : tensor.shape) n *= d;
    tensor.values.resize(static_cast<size_t>(n));
    for (size_t i = 0; i < tensor.values.size(); ++i)
      tensor.values[i] = static_cast<float>(i % 251);
  }
  const auto w = c.Load();
  REQUIRE(w.ok());
  const LayerWeights& l = w->decoder.layers[1];
  CHECK(Rows(l.ffn_in, 0, 5000) == Transposed(c.tensors.at("transformer.h.1.mlp.c_fc.weight")));
  CHECK(Rows(l.ffn_out, 0, 128) == Transposed(c.tensors.at("transformer.h.1.mlp.c_proj.weight")));
}

TEST_CASE("The tensors of each task head are loaded", "[weights]") {
  const struct {
    const char* golden;
    const char* dense;  // null: none
    const char* head;
    int64_t labels;
  } cases[] = {
      {"t5-seqcls", "classification_head.dense", "classification_head.out_proj", 5},
      {"t5-tokcls", nullptr, "classifier", 7},
      {"t5-qa", nullptr, "qa_outputs", 2},
      {"fat5-seqcls", "classification_head.dense", "classification_head.out_proj", 5},
      {"fat5-tokcls", nullptr, "classifier", 7},
      {"fat5-qa", nullptr, "qa_outputs", 2},
  };
  for (const auto& k : cases) {
    INFO(k.golden);
    Checkpoint c(k.golden);
    const auto w = c.Load();
    REQUIRE(w.ok());
    CHECK(!w->head.defined());
    const std::string head = k.head;
    CHECK(Rows(w->classifier, 0, k.labels) == c.tensors.at(head + ".weight").values);
    CHECK(Values(w->classifier_bias) == c.tensors.at(head + ".bias").values);
    REQUIRE(w->classifier_dense.defined() == (k.dense != nullptr));
    if (k.dense == nullptr) continue;
    const std::string dense = k.dense;
    CHECK(Rows(w->classifier_dense, 0, w->classifier_dense.n()) ==
          c.tensors.at(dense + ".weight").values);
    CHECK(Values(w->classifier_dense_bias) == c.tensors.at(dense + ".bias").values);
  }

  Checkpoint gpt2("gpt2");
  gpt2.config["architectures"] = {"GPT2ForSequenceClassification"};
  gpt2.tensors["score.weight"] = {StoredType::kF32, {2, 128}, std::vector<float>(256, 0.5f)};
  const auto w = gpt2.Load();
  REQUIRE(w.ok());
  CHECK(Rows(w->classifier, 0, 2) == std::vector<float>(256, 0.5f));
  CHECK(!w->classifier_bias.defined());
}

// A row of the table of logit scales in models/README.md.
struct ScaleCase {
  const char* checkpoint;
  nlohmann::json tied, scale;  // null: absent
  const char* head;            // lm_head.weight: "stored", "equal" to the embedding or "absent"
  bool scaled, doubtful;
};

TEST_CASE("The logit scale follows tie_word_embeddings, scale_decoder_outputs and the stored head",
          "[weights]") {
  const nlohmann::json none;
  const ScaleCase cases[] = {
      {"t5-v1_1", none, true, "stored", true, false},
      {"t5-v1_1", none, false, "stored", false, false},
      {"t5-v1_1", true, false, "stored", false, false},  // a 5.x file of a v1.1
      {"t5-v1_1", false, none, "stored", false, false},  // a 4.x file of a v1.1
      {"t5-v1_1", false, none, "equal", false, false},
      {"t5-v1_1", false, none, "absent", false, true},
      {"t5-v1_1", true, none, "stored", true, true},
      {"t5-v1_1", none, none, "stored", true, true},
      {"t5-v1_1", true, none, "equal", true, false},
      {"t5-v1_1", none, none, "equal", true, false},
      {"t5-v1_1", true, none, "absent", true, false},  // v1.0
      {"t5-v1_1", none, none, "absent", true, false},
      {"longt5-local", false, none, "stored", false, false},  // the published files
      {"longt5-local", true, false, "stored", false, false},  // saved again by 5.x
      {"longt5-local", none, none, "absent", true, false},
      {"longt5-local", false, none, "absent", false, true},
      {"longt5-local", true, none, "stored", true, true},
      {"mt5", none, true, "stored", true, false},
      {"mt5", false, none, "stored", false, false},
      {"mt5", none, none, "stored", false, false},
      {"mt5", true, none, "stored", false, false},  // a 5.x file
      {"mt5", true, none, "equal", false, true},
      {"mt5", true, none, "absent", false, true},
      {"mt5", true, false, "absent", false, false},
      {"mt5", false, none, "absent", false, true},
      {"umt5", true, none, "absent", true, false},
      {"umt5", none, none, "absent", true, false},
      {"umt5", true, none, "equal", true, false},
      {"umt5", true, none, "stored", true, true},
      {"umt5", none, none, "stored", true, true},
      {"umt5", false, none, "stored", false, true},  // the published files
      {"umt5", false, none, "equal", false, true},
      {"umt5", false, none, "absent", true, true},
      {"umt5", false, false, "stored", false, false},
      {"umt5", false, true, "stored", true, false},
  };
  for (const ScaleCase& one : cases) {
    INFO(one.checkpoint << " tied " << one.tied << " scale " << one.scale << " head " << one.head);
    Checkpoint c(one.checkpoint);
    const auto set = [&c](const char* name, const nlohmann::json& value) {
      c.config.erase(name);
      if (!value.is_null()) c.config[name] = value;
    };
    set("tie_word_embeddings", one.tied);
    set("scale_decoder_outputs", one.scale);
    const bool stored = std::string(one.head) == "stored";
    c.tensors["lm_head.weight"] = c.tensors.at("shared.weight");
    if (stored) c.tensors["lm_head.weight"].values.back() += 1.0f;
    if (std::string(one.head) == "absent") c.tensors.erase("lm_head.weight");
    const auto w = c.Load();
    INFO(w.status().message());
    REQUIRE(w.ok());
    const float factor = 1.0f / std::sqrt(static_cast<float>(w->embedding.dim[1]));
    CHECK(w->logit_scale == (one.scaled ? factor : 1.0f));
    const std::string warning = c.model.logit_scale_warning;
    CHECK(warning.empty() != one.doubtful);
    if (!one.doubtful) continue;
    const std::string chosen = one.scaled ? "true" : "false", other = one.scaled ? "false" : "true";
    CHECK_THAT(warning, ContainsSubstring("config.json: tie_word_embeddings is "));
    CHECK_THAT(warning, ContainsSubstring("\"scale_decoder_outputs\": " + chosen));
    CHECK_THAT(warning, ContainsSubstring("or to " + other));
    // The loader has guessed whether logits are scaled, and warns that config.json is ambiguous
    // about it. Setting the field that the warning names (scale_decoder_outputs) decides it and
    // removes the warning.
    c.config["scale_decoder_outputs"] = !one.scaled;
    CHECK(c.Load()->logit_scale == (one.scaled ? 1.0f : factor));
    CHECK(c.model.logit_scale_warning.empty());
  }
}

TEST_CASE("The embedding is found under each of its names", "[weights]") {
  Checkpoint c("t5-v1_0");
  const std::vector<float> values = c.tensors.at("shared.weight").values;
  const auto embedding = [&] {
    const auto w = c.Load();
    REQUIRE(w.ok());
    CHECK(Rows(w->head, 0, 192) == Values(w->embedding));
    return Values(w->embedding);
  };
  c.Rename("shared.weight", "decoder.embed_tokens.weight");
  CHECK(embedding() == values);
  c.Rename("decoder.embed_tokens.weight", "encoder.embed_tokens.weight");
  CHECK(embedding() == values);
  c.tensors["decoder.embed_tokens.weight"] = c.tensors["encoder.embed_tokens.weight"];
  c.tensors["decoder.embed_tokens.weight"].values[0] = 9.0f;
  CHECK(embedding() == values);
  c.tensors["shared.weight"] = c.tensors["decoder.embed_tokens.weight"];
  CHECK(embedding()[0] == 9.0f);
}

TEST_CASE("Alternative names and known unused tensors are accepted", "[weights]") {
  Checkpoint t5("t5-v1_0");
  t5.tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] =
      t5.tensors["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"];
  CHECK(t5.Load().ok());
  t5.config["architectures"] = {"T5EncoderModel"};
  t5.tensors["lm_head.weight"] = t5.tensors["shared.weight"];
  const auto encoder = t5.Load();
  REQUIRE(encoder.ok());
  CHECK(encoder->decoder.layers.empty());
  CHECK(!encoder->cross_kv.defined());

  Checkpoint fat5("fat5-relu-plain");
  for (const char* stack : {"encoder", "decoder"}) {
    for (int n = 0;
         fat5.tensors.count(absl::StrCat(stack, ".block.", n, ".ff_layer.act.wi.weight")); ++n) {
      fat5.Rename(absl::StrCat(stack, ".block.", n, ".ff_layer.act.wi.weight"),
                  absl::StrCat(stack, ".block.", n, ".ff_layer.wi.weight"));
    }
  }
  CHECK(fat5.Load().ok());

  Checkpoint gpt2("gpt2");
  TestTensors bare;
  for (const auto& [name, tensor] : gpt2.tensors) bare[name.substr(12)] = tensor;
  gpt2.tensors = bare;
  gpt2.tensors["h.0.attn.bias"] = {StoredType::kF32, {1, 1, 2, 2}, {1, 0, 1, 1}};
  gpt2.tensors["h.0.attn.masked_bias"] = {StoredType::kF32, {}, {-1e4f}};
  CHECK(gpt2.Load().ok());
  gpt2.tensors["transformer.ln_f.bias"] = gpt2.tensors["ln_f.bias"];
  CHECK_THAT(gpt2.Problem(), ContainsSubstring("with and without the prefix"));
}

TEST_CASE("All missing, unexpected and misshapen tensors are reported in one error", "[weights]") {
  Checkpoint c("t5-v1_1");
  c.tensors.erase("encoder.block.0.layer.0.SelfAttention.k.weight");
  c.tensors.erase("decoder.final_layer_norm.weight");
  c.tensors["surprise"] = {StoredType::kF32, {1}, {1.0f}};
  c.tensors["lm_head.weight"].shape = {128, 256};
  c.tensors["shared.weight"] = {StoredType::kI64, {256, 128}, std::vector<float>(256 * 128)};
  const std::string problem = c.Problem();
  CHECK_THAT(problem, ContainsSubstring("missing: decoder.final_layer_norm.weight, "
                                        "encoder.block.0.layer.0.SelfAttention.k.weight;"));
  CHECK_THAT(problem, ContainsSubstring("unexpected: surprise;"));
  CHECK_THAT(problem, ContainsSubstring("lm_head.weight is BF16 [128, 256], expected [256, 128]"));
  CHECK_THAT(problem,
             ContainsSubstring("shared.weight is I64 [256, 128], expected F32, BF16 or F16"));

  Checkpoint wrong_family("t5-v1_0");
  wrong_family.config["model_type"] = "umt5";
  wrong_family.config["feed_forward_proj"] = "relu";
  CHECK_THAT(
      wrong_family.Problem(),
      ContainsSubstring("missing: decoder.block.1.layer.0.SelfAttention.relative_attention_bias"));
  Checkpoint none("t5-v1_0");
  none.tensors.clear();
  CHECK_THAT(none.Problem(), ContainsSubstring("and 40 more"));
  Checkpoint layers("t5-v1_0");
  layers.config["num_layers"] = 1024;
  CHECK_THAT(layers.Problem(), ContainsSubstring("more"));
  Checkpoint fat5("fat5-t5");
  fat5.tensors.erase("lm_head.weight");
  CHECK_THAT(fat5.Problem(), ContainsSubstring("missing: lm_head.weight"));
}

TEST_CASE("FAT5 files from before March 2024 are recognised", "[weights]") {
  Checkpoint c("fat5-t5");
  const std::string self = "encoder.block.0.self_attention_layer.self_attention.";
  c.Rename(self + "Wk.weight", self + "Wkv.weight");
  const auto w = c.Load();
  CHECK(absl::IsUnimplemented(w.status()));
  CHECK_THAT(std::string(w.status().message()), ContainsSubstring("before March 2024"));
}

TEST_CASE("A tensor with a value that is not finite is rejected by name", "[weights]") {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity()};
  for (const char* golden : {"t5-v1_0", "t5-v1_1", "gpt2-variant"}) {  // f32, bf16, f16
    Checkpoint good(golden);
    for (const auto& [name, tensor] : good.tensors) {
      Checkpoint c(golden);
      auto& values = c.tensors[name].values;
      values[values.size() * 2 / 3] = bad[name.size() % 3];
      INFO(name);
      CHECK_THAT(c.Problem(),
                 ContainsSubstring(absl::StrCat("tensor ", name, " holds a NaN or an infinity")));
    }
  }
}

TEST_CASE("A truncated model is rejected", "[weights]") {
  Checkpoint c("fat5-seqcls");
  TemporaryDirectory directory;
  const std::string path = directory / "model.safetensors";
  WriteTensors(directory.path(), c.tensors);
  const std::string whole = FileBytes(path);
  REQUIRE(c.LoadFrom(directory.path(), WeightType::kF32, 1).ok());
  for (size_t n = 0; n < whole.size(); n += 4096) {
    WriteBytes(path, whole.substr(0, n));
    CHECK(absl::IsInvalidArgument(c.LoadFrom(directory.path(), WeightType::kF32, 1).status()));
  }
}

// Loads randomly damaged files without comparing any results: the test only checks that the loader
// does not crash. If the loader accepts a damaged file, sanitizers and QT_CHECK detect invalid
// memory accesses.
TEST_CASE("Damaged headers and configurations never crash the loader", "[weights]") {
  const std::string golden = GoldenDirectory("fat5-seqcls");
  const std::string file = FileBytes(golden + "/model.safetensors");
  const std::string config = FileBytes(golden + "/config.json");
  TemporaryDirectory directory;
  std::mt19937 random(11);
  const auto damage = [&random](const std::string& bytes, size_t end) {
    std::string damaged = bytes;
    for (int i = 0; i < 3; ++i) {
      const std::string replacements = "0123456789-[]{},:\"eEnu\\ ";
      const size_t at = random() % end;
      damaged[at] = random() % 4 == 0 ? static_cast<char>(random())
                                      : replacements[random() % replacements.size()];
    }
    return damaged;
  };
  ThreadPool pool(1);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    WriteBytes(directory / "model.safetensors", i % 2 ? damage(file, 3000) : file);
    WriteBytes(directory / "config.json", i % 2 ? config : damage(config, config.size()));
    auto model = ReadModelConfig(directory.path());
    if (!model.ok() ||
        !LoadWeights(directory.path(), &*model, {.type = WeightType::kI8}, &pool).ok()) {
      ++refused;
    }
  }
  CHECK(refused > 300);
}

TEST_CASE("The loaded weights do not depend on the number of threads or shards", "[weights]") {
  Checkpoint c("umt5");
  const auto one = c.Load(WeightType::kF32, 1);
  REQUIRE(one.ok());
  const std::vector<float> expected = Everything(*one);
  CHECK(Everything(*c.Load(WeightType::kF32, 3)) == expected);

  TemporaryDirectory directory;
  TestTensors shards[2];
  json weight_map;
  size_t i = 0;
  for (const auto& [name, tensor] : c.tensors) {
    weight_map[name] = i % 2 == 0 ? "one.safetensors" : "two.safetensors";
    shards[i++ % 2][name] = tensor;
  }
  WriteTensors(directory.path(), shards[0], "one.safetensors");
  WriteTensors(directory.path(), shards[1], "two.safetensors");
  WriteBytes(directory / "model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
  const auto sharded = c.LoadFrom(directory.path(), WeightType::kF32, 2);
  REQUIRE(sharded.ok());
  CHECK(Everything(*sharded) == expected);
}

}  // namespace
}  // namespace quintet
