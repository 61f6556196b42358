// On a GPU, decoder steps, prefill and encoding are launched as CUDA graphs if their shape has
// occurred before. A graph may get other tokens, lengths and slots than at its capture; its results
// must equal the CPU's. The first rounds run without a graph, later ones with it; all are compared.
// Also tests weight types that only GPUs support.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/adapters/recorded_adapter.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/must_load.h"
#include "tests/models/row_runner.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

TokenRows RandomRows(const std::vector<int>& lengths, int64_t vocab, std::mt19937* random) {
  TokenRows rows;
  for (const int length : lengths) {
    rows.emplace_back(length);
    for (int32_t& token : rows.back()) {
      token = static_cast<int32_t>((*random)() % static_cast<uint64_t>(vocab));
    }
  }
  return rows;
}

double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
  return largest;
}

TEST_CASE("CUDA graphs of prompts, steps and encodings give the CPU's results") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  std::mt19937 random(7);
  // Each inner vector is one batch: it contains the number of tokens of each row. Every batch is
  // decoded in three ways: with all tokens in one call, with at most 20 tokens of each row per
  // call, and with one token of each row per call.
  const std::vector<std::vector<int>> shapes = {{40}, {3, 33, 1, 17}, {16, 16}, {1, 1, 1}};
  for (const char* name :
       {"gpt2", "gpt2-variant", "t5-v1_0", "t5-v1_1", "fat5-rope", "longt5-tglobal"}) {
    INFO(name);
    const std::string directory = GoldenDirectory(name);
    auto on_cpu = MustLoad(directory, &pool);
    auto on_gpu = MustLoad(directory, &pool, {.device = device.get()});
    RowRunner cpu(on_cpu.get()), gpu(on_gpu.get());
    const int64_t vocab = on_cpu->config().vocab;
    for (int round = 0; round < 4; ++round) {
      for (const auto& shape : shapes) {
        if (on_cpu->config().has_encoder()) {
          const TokenRows sources = RandomRows(shape, vocab, &random);
          CHECK(LargestDifference(cpu.Encode(sources, kAll), gpu.Encode(sources, kAll)) < 5e-5);
        }
        const TokenRows rows = RandomRows(shape, vocab, &random);
        const std::vector<float> expected = cpu.Decode(rows, kAll);
        for (const int64_t piece : {kAll, int64_t{20}, int64_t{1}}) {
          CHECK(LargestDifference(expected, gpu.Decode(rows, piece)) < 5e-5);
        }
      }
    }
  }
}

// Writes a T5 v1.1 model with 1,024 channels and random weights. GEMMs with fewer inputs would not
// quantise them (kMinQuantizedInputs).
void WriteWideModel(const std::string& directory) {
  const std::string golden = GoldenDirectory("t5-v1_1");
  constexpr int64_t kGolden = 128, kWide = 1024;
  nlohmann::json config = nlohmann::json::parse(FileBytes(golden + "/config.json"));
  REQUIRE(config["d_model"] == kGolden);
  config["d_model"] = kWide;
  WriteBytes(directory + "/config.json", config.dump());
  TestTensors tensors = ReadTensors(golden);
  std::mt19937 random(9);
  for (auto& [name, tensor] : tensors) {
    std::replace(tensor.shape.begin(), tensor.shape.end(), kGolden, kWide);
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    const bool norm = tensor.shape.size() == 1, table = name.find("shared") != std::string::npos;
    const float deviation = table ? 1.0f : 0.7f / std::sqrt(static_cast<float>(kWide));
    std::normal_distribution<float> normal(0.0f, deviation);
    tensor.values.assign(static_cast<size_t>(count), 1.0f);
    if (norm) continue;
    for (float& v : tensor.values) v = normal(random);
  }
  WriteTensors(directory, tensors);
}

TEST_CASE("GEMMs that quantise their inputs give nearly the results of their weights alone") {
  auto device = Device::Open(0);
  if (!device.ok() || !(*device)->hopper()) {
    WARN("not run: it needs a Hopper GPU");
    return;
  }
  ThreadPool pool(2);
  std::mt19937 random(8);
  TemporaryDirectory directory;
  WriteWideModel(directory.path());
  const auto load = [&](WeightType type) {
    return MustLoad(directory.path(), &pool, {.weights = type, .device = device->get()});
  };
  for (const bool fp8 : {true, false}) {
    INFO((fp8 ? "fp8" : "int8"));
    const auto alone = load(fp8 ? WeightType::kF8 : WeightType::kI8);
    const auto both = load(fp8 ? WeightType::kF8W8A8 : WeightType::kI8W8A8);
    RowRunner expected(alone.get()), runner(both.get());
    // GEMMs of up to 32 rows do not quantise inputs.
    for (const bool many : {true, false}) {
      const std::vector<int> lengths = many ? std::vector{40, 7, 90} : std::vector{9, 5};
      const TokenRows rows = RandomRows(lengths, both->config().vocab, &random);
      const double encoded = MeanDifference(runner.Encode(rows, kAll), expected.Encode(rows, kAll));
      const double decoded = MeanDifference(runner.Decode(rows, kAll), expected.Decode(rows, kAll));
      CAPTURE(many, encoded, decoded);
      CHECK((encoded > 0.001) == many);
      CHECK((decoded > 0.001) == many);
      CHECK(encoded < 0.1);
      CHECK(decoded < 0.1);
    }
  }
}

// The keys and values of all tokens, of the decoder and of the input, come from the cache.
TEST_CASE("A cache of fp8 takes half the memory and gives nearly the results of bf16 and f16") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  std::mt19937 random(12);
  for (const char* name : {"gpt2", "t5-v1_0", "t5-v1_1", "fat5-rope", "longt5-tglobal"}) {
    for (const WeightType type : {WeightType::kBF16, WeightType::kF16}) {
      const auto load = [&](bool fp8) {
        return MustLoad(GoldenDirectory(name), &pool,
                        {.weights = type, .fp8_cache = fp8, .device = device.get()});
      };
      const auto wide = load(false), narrow = load(true);
      CHECK(2 * narrow->memory().cache == wide->memory().cache);
      CHECK(narrow->memory().weights == wide->memory().weights);
      RowRunner expected(wide.get()), runner(narrow.get());
      for (int round = 0; round < 4; ++round) {  // the last rounds are launched as CUDA graphs
        const TokenRows rows = RandomRows({40, 7, 19, 1}, wide->config().vocab, &random);
        if (wide->config().has_encoder()) {
          runner.Encode(rows, kAll);
          expected.Encode(rows, kAll);
        }
        for (const int64_t piece : {kAll, int64_t{20}, int64_t{1}}) {
          const std::vector<float> states = expected.Decode(rows, piece);
          const double error = MeanDifference(runner.Decode(rows, piece), states);
          CAPTURE(name, WeightTypeName(type), round, piece, error);
          CHECK(error > 1e-4);
          CHECK(error < 0.2);
        }
      }
    }
  }
}

TEST_CASE("A cache of fp8 is refused with activations of f32") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  const absl::Status status =
      Model::Load(GoldenDirectory("t5-v1_1"),
                  {.weights = WeightType::kF32, .fp8_cache = true, .device = device.get()}, &pool)
          .status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace quintet
