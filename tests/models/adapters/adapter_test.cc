#include "models/adapters/adapter.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "models/adapters/adapter_summary.h"
#include "models/adapters/merge.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

// t5-v1_0: d_model 64, 2 heads of 64.
constexpr char kPrefix[] = "base_model.model.";
constexpr char kQuery[] = "encoder.block.0.layer.0.SelfAttention.q";
constexpr char kCrossV[] = "decoder.block.1.layer.1.EncDecAttention.v";

ModelConfig ConfigOf(const std::string& golden) {
  const auto config = ReadModelConfig(GoldenDirectory(golden));
  REQUIRE(config.ok());
  return *config;
}

// An adapter on disk that a test can change before it is read.
struct Files {
  explicit Files(const std::string& golden) : config(ConfigOf(golden)) {
    file = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}, {"target_modules", Json::array()}};
    for (const LinearModule& m : ListModules(config).linear) {
      if (m.spellings[0] == kQuery || m.spellings[0] == kCrossV) Add(m, 2);
    }
  }
  void Add(const LinearModule& m, int64_t rank) {
    file["target_modules"].push_back(m.name);
    Put(std::string(kPrefix) + m.name + ".lora_A.weight", {rank, m.columns});
    Put(std::string(kPrefix) + m.name + ".lora_B.weight", {m.rows, rank});
  }
  void Put(const std::string& name, std::vector<int64_t> shape) {
    size_t count = 1;
    for (const int64_t d : shape) count *= static_cast<size_t>(d);
    TestTensor t{StoredType::kF32, std::move(shape), std::vector<float>(count)};
    for (size_t i = 0; i < count; ++i) t.values[i] = static_cast<float>(i % 7) - 3.0f;
    tensors[name] = std::move(t);
  }
  absl::StatusOr<Adapter> Read() {
    WriteBytes(directory / "adapter_config.json", file.dump());
    WriteTensors(directory.path(), tensors, "adapter_model.safetensors");
    return ReadAdapter(directory.path(), config);
  }
  std::string Problem() {
    const absl::Status status = Read().status();
    CHECK(absl::IsInvalidArgument(status));
    return std::string(status.message());
  }
  absl::StatusOr<Adapter> ReadKohya() {
    WriteTensors(directory.path(), tensors, "kohya.safetensors");
    return ReadAdapter(directory / "kohya.safetensors", config);
  }

  TemporaryDirectory directory;
  ModelConfig config;
  Json file;
  TestTensors tensors;
};

bool Names(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("Modules are mapped to rows of the packed parameters") {
  const ModelConfig config = ConfigOf("t5-v1_1");
  const int64_t inner = config.inner();
  int found = 0;
  for (const LinearModule& m : ListModules(config).linear) {
    if (m.name == "decoder.block.1.layer.1.EncDecAttention.v") {
      CHECK(m.parameter == "decoder.cross_kv.weight");
      CHECK(m.row == 3 * inner);
      CHECK(m.rows == inner);
      ++found;
    } else if (m.name == "encoder.block.1.layer.0.SelfAttention.k") {
      CHECK(m.parameter == "encoder.layers.1.qkv.weight");
      CHECK(m.row == inner);
      ++found;
    } else if (m.name == "decoder.block.0.layer.2.DenseReluDense.wi_1") {
      CHECK(m.parameter == "decoder.layers.0.ffn_in.weight");
      CHECK(m.row == config.d_ff);
      ++found;
    } else if (m.name == "lm_head") {
      CHECK(m.head);
      CHECK(m.spellings == std::vector<std::string>{"lm_head"});
      ++found;
    }
  }
  CHECK(found == 4);
}

TEST_CASE("Modules have the names of the Python class that the head implies") {
  const auto first = [](const std::string& golden) {
    return ListModules(ConfigOf(golden)).linear[0].name;
  };
  CHECK(first("gpt2") == "transformer.h.0.attn.c_attn");
  CHECK(first("t5-v1_1") == "encoder.block.0.layer.0.SelfAttention.q");
  CHECK(first("t5-seqcls") == "transformer.encoder.block.0.layer.0.SelfAttention.q");
  CHECK(first("fat5-alibi") == "encoder.block.0.self_attention_layer.self_attention.Wq");
  const ModuleTable seqcls = ListModules(ConfigOf("t5-seqcls"));
  REQUIRE(seqcls.head.size() == 4);
  CHECK(seqcls.head[0].name == "classification_head.dense.weight");
  CHECK(seqcls.head[3].module == "classification_head.out_proj");
}

TEST_CASE("An adapter is read with its scale, and merging adds scale B A") {
  Files files("t5-v1_0");
  const absl::StatusOr<Adapter> adapter = files.Read();
  INFO(adapter.status());
  REQUIRE(adapter.ok());
  REQUIRE(adapter->factors.size() == 2);
  const LoraFactors& f = adapter->factors[0];
  CHECK(f.module.name == kQuery);
  CHECK(f.scale == 3.0f);
  CHECK(adapter->max_rank() == 2);
  CHECK(adapter->Changes("encoder.layers.0.qkv.weight"));
  CHECK(!adapter->Changes("encoder.layers.1.qkv.weight"));
  const int64_t columns = f.module.columns, rows = 2 * f.module.rows;
  std::vector<float> values(static_cast<size_t>(rows * columns), 0.5f);
  MergedParameter(*adapter, f.module.parameter).Apply(0, rows, columns, values.data());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      double expected = 0.5;
      for (int64_t i = 0; i < 2 && r < f.module.rows; ++i) {
        expected +=
            3.0 * f.b[static_cast<size_t>(r * 2 + i)] * f.a[static_cast<size_t>(i * columns + c)];
      }
      if (values[static_cast<size_t>(r * columns + c)] != static_cast<float>(expected)) {
        FAIL(r << ", " << c);
      }
    }
  }
  // Applying the adapter to only a block of rows, here one row, gives the same values.
  std::vector<float> block(static_cast<size_t>(columns), 0.5f);
  MergedParameter(*adapter, f.module.parameter).Apply(5, 1, columns, block.data());
  CHECK(std::equal(block.begin(), block.end(), values.begin() + 5 * columns));
}

TEST_CASE("Missing, unexpected and misshapen tensors are all named in one error") {
  Files files("t5-v1_0");
  files.tensors.erase(std::string(kPrefix) + kQuery + ".lora_B.weight");
  files.Put("base_model.model.encoder.block.9.layer.0.SelfAttention.q.lora_A.weight", {2, 64});
  files.Put("stray", {1});
  files.tensors[std::string(kPrefix) + kCrossV + ".lora_A.weight"] = {
      StoredType::kF32, {3, 64}, std::vector<float>(192)};
  const std::string problem = files.Problem();
  INFO(problem);
  CHECK(Names(problem, "missing: base_model.model.encoder.block.0.layer.0.SelfAttention.q.lora_B"));
  CHECK(Names(problem, "encoder.block.9"));
  CHECK(Names(problem, "stray"));
  CHECK(Names(problem, "is F32 [3, 64], expected [2, 64]"));
}

TEST_CASE("Tensors of modules that target_modules does not name are unexpected") {
  Files files("t5-v1_0");
  files.file["target_modules"] = {"q"};
  const std::string problem = files.Problem();
  CHECK(Names(problem, "unexpected: base_model.model.decoder.block.1.layer.1.EncDecAttention.v"));
  CHECK(Names(problem, "missing:"));  // the other modules named q
}

TEST_CASE("A base model without the adapter's modules is named as the reason") {
  Files files("t5-v1_0");
  files.tensors.clear();
  files.file["target_modules"] = {"c_attn"};
  CHECK(Names(files.Problem(), "base model"));
}

TEST_CASE("NaN, infinity and integer types are errors") {
  const std::string name = std::string(kPrefix) + kQuery + ".lora_A.weight";
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    Files files("t5-v1_0");
    files.tensors[name].values[3] = bad;
    CHECK(Names(files.Problem(), "NaN or an infinity"));
  }
  Files files("t5-v1_0");
  files.tensors[name].type = StoredType::kI64;
  CHECK(Names(files.Problem(), "expected F32, BF16 or F16"));
}

TEST_CASE("Other kinds of adapters are refused by the names of their tensors") {
  for (const char* name :
       {"base_model.model.encoder.block.0.layer.0.SelfAttention.q.lora_magnitude_vector",
        "base_model.model.shared.lora_embedding_A", "base_model.model.shared.weight",
        "base_model.model.encoder.block.0.layer.0.SelfAttention.q.hada_w1_a",
        "base_model.model.encoder.block.0.layer.0.SelfAttention.q.lora_B.bias",
        "base_model.prompt_embeddings"}) {
    Files files("t5-v1_0");
    files.Put(name, {1});
    const absl::Status status = files.Read().status();
    INFO(name << ": " << status);
    CHECK(absl::IsUnimplemented(status));
    CHECK(Names(std::string(status.message()), "merge_and_unload"));
  }
}

TEST_CASE("Heads in modules_to_save replace the model's, other modules are refused") {
  Files files("t5-tokcls");
  files.file["target_modules"] = {"EncDecAttention.v"};
  files.file["modules_to_save"] = {"classifier", "score"};
  files.tensors.clear();
  const int64_t labels = files.config.labels, d = files.config.d_model;
  files.Put("base_model.model.classifier.weight", {labels, d});
  CHECK(Names(files.Problem(), "missing: base_model.model.classifier.bias"));
  files.Put("base_model.model.classifier.bias", {labels});
  const absl::StatusOr<Adapter> adapter = files.Read();
  INFO(adapter.status());
  REQUIRE(adapter.ok());
  CHECK(adapter->saved.size() == 2);
  std::vector<float> bias(static_cast<size_t>(labels));
  MergedParameter(*adapter, "classifier.bias").Apply(0, labels, 1, bias.data());
  CHECK(bias == files.tensors["base_model.model.classifier.bias"].values);
  files.Put("base_model.model.classifier.weight", {labels + 1, d});
  CHECK(Names(files.Problem(), "expected ["));
  files.file["modules_to_save"] = {"layer_norm"};
  CHECK(absl::IsUnimplemented(files.Read().status()));
}

TEST_CASE("The base model's head, which PEFT saves beside the factors of lm_head, is not read") {
  Files files("t5-v1_0");
  const int64_t vocab = files.config.vocab, d = files.config.d_model;
  const std::string name = "base_model.model.lm_head.base_layer.weight";
  files.Put(name, {vocab, d});
  CHECK(files.Read()->skipped == 1);
  files.Put(name, {vocab + 8, d});
  CHECK(Names(files.Problem(), "expected ["));
  files.tensors.erase(name);
  files.Put("base_model.model.encoder.x.base_layer.weight", {1});
  CHECK(Names(files.Problem(), "unexpected: base_model.model.encoder.x"));
}

TEST_CASE("Kohya's names are read with alpha, and parts for other models are skipped") {
  Files files("t5-v1_0");
  const int64_t inner = files.config.inner(), d = files.config.d_model;
  const std::string key = "lora_te3_encoder_block_0_layer_0_SelfAttention_q";
  files.tensors.clear();
  files.Put(key + ".lora_down.weight", {4, d});
  files.Put(key + ".lora_up.weight", {inner, 4});
  files.Put("lora_unet_x.lora_down.weight", {1, 1});
  files.Put("lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha", {});
  absl::StatusOr<Adapter> adapter = files.ReadKohya();
  INFO(adapter.status());
  REQUIRE(adapter.ok());
  CHECK(adapter->skipped == 2);
  CHECK(adapter->factors[0].scale == 1.0f);
  files.tensors[key + ".alpha"] = {StoredType::kF32, {}, {2.0f}};
  CHECK(files.ReadKohya()->factors[0].scale == 0.5f);
  files.tensors[key + ".alpha"] = {StoredType::kF32, {2}, {2.0f, 1.0f}};
  CHECK(absl::IsInvalidArgument(files.ReadKohya().status()));
  files.tensors.erase(key + ".alpha");
  files.tensors.erase(key + ".lora_up.weight");
  const absl::Status missing = files.ReadKohya().status();
  CHECK(Names(std::string(missing.message()), "missing: " + key + ".lora_up.weight"));
  files.Put(key + ".lora_up.weight", {inner, 4});
  files.Put("lora_te3_encoder_block_7_layer_0_SelfAttention_q.alpha", {});
  CHECK(Names(std::string(files.ReadKohya().status().message()), "unexpected: lora_te3"));
  files.tensors.clear();
  files.Put("lora_unet_x.lora_down.weight", {1, 1});
  CHECK(absl::IsInvalidArgument(files.ReadKohya().status()));
}

TEST_CASE("The summary of kohya's files has the last parts of the names of modules") {
  Files files("t5-v1_0");
  files.tensors.clear();
  for (const char* module : {"0_layer_0_SelfAttention_q", "0_layer_1_DenseReluDense_wi_0",
                             "1_layer_1_DenseReluDense_wi_0", "1_layer_1_DenseReluDense_wi_1"}) {
    const std::string name = std::string("lora_te3_encoder_block_") + module;
    files.Put(name + ".lora_down.weight", {4, files.config.d_model});
  }
  WriteTensors(files.directory.path(), files.tensors, "kohya.safetensors");
  const absl::StatusOr<AdapterSummary> summary =
      InspectAdapter(files.directory / "kohya.safetensors", /*follow_symlinks=*/false);
  REQUIRE(summary.ok());
  CHECK(summary->modules == std::map<std::string, int64_t>{{"q", 1}, {"wi_0", 2}, {"wi_1", 1}});
}

TEST_CASE("Ranks of kohya's files are limited, and factors agree") {
  Files files("t5-v1_0");
  const int64_t inner = files.config.inner(), d = files.config.d_model;
  const std::string key = "lora_te_encoder_block_0_layer_0_SelfAttention_q";
  const std::pair<int64_t, int64_t> ranks[] = {{0, 0}, {1025, 1025}, {4, 5}};
  for (const auto& [down, up] : ranks) {
    files.tensors.clear();
    files.Put(key + ".lora_down.weight", {down, d});
    files.Put(key + ".lora_up.weight", {inner, up});
    CHECK(absl::IsInvalidArgument(files.ReadKohya().status()));
  }
}

TEST_CASE("Paths that are no adapters are explained") {
  const ModelConfig config = ConfigOf("t5-v1_0");
  const auto message = [&](const std::string& path) {
    return std::string(ReadAdapter(path, config).status().message());
  };
  TemporaryDirectory directory;
  CHECK(absl::IsNotFound(ReadAdapter(directory / "none", config).status()));
  CHECK(Names(message(directory.path()), "adapter_config.json"));
  CHECK(Names(message(GoldenDirectory("t5-v1_0")), "a model, not an adapter"));
  WriteBytes(directory / "adapter_config.json", "{}");
  CHECK(Names(message(directory.path()), "no adapter_model.safetensors"));
  WriteBytes(directory / "adapter_model.bin", "x");
  CHECK(Names(message(directory.path()), "pickle"));
  WriteBytes(directory / "adapter_model.safetensors", "x");
  CHECK(Names(message(directory.path()), "peft_type"));
  WriteBytes(directory / "x.bin", "x");
  CHECK(Names(message(directory / "x.bin"), "*.safetensors"));
}

TEST_CASE("Symbolic links of adapters are refused unless allowed") {
  Files files("t5-v1_0");
  REQUIRE(files.Read().ok());
  TemporaryDirectory other;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    std::filesystem::create_symlink(files.directory / name, other / name);
  }
  CHECK(!ReadAdapter(other.path(), files.config).ok());
  CHECK(ReadAdapter(other.path(), files.config, true).ok());
}

}  // namespace
}  // namespace quintet
