// On a GPU, decoder steps, prompts and encodings of a shape that is used again are launched as CUDA
// graphs. With other tokens, lengths and slots than at the capture, a graph's results must equal
// the CPU's. The first rounds run without a graph, later ones with it; all are compared.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "tests/catch.h"
#include "tests/models/row_runner.h"

namespace quintet {
namespace {

constexpr int64_t kAll = int64_t{1} << 40;

std::unique_ptr<Model> LoadCase(const std::string& name, Device* device, ThreadPool* pool) {
  LoadOptions options;
  options.device = device;
  auto model = Model::Load(QUINTET_SOURCE_DIR "/tests/golden/cases/" + name, options, pool);
  INFO(model.status());
  REQUIRE(model.ok());
  return *std::move(model);
}

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
  auto device = Device::Open(0);
  if (!device.ok()) {  // ctest recognises a skipped test by the word "skipped"
    WARN("skipped: " << device.status().message());
    return;
  }
  ThreadPool pool(2);
  std::mt19937 random(7);
  // Each inner vector is one batch: it contains the number of tokens of each row. Every batch is
  // decoded in three ways: with all tokens in one call, with at most 20 tokens of each row per
  // call, and with one token of each row per call.
  const std::vector<std::vector<int>> shapes = {{40}, {3, 33, 1, 17}, {16, 16}, {1, 1, 1}};
  for (const char* name : {"gpt2", "gpt2-variant", "t5-v1_0", "t5-v1_1", "fat5-rope"}) {
    INFO(name);
    auto on_cpu = LoadCase(name, nullptr, &pool), on_gpu = LoadCase(name, device->get(), &pool);
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

}  // namespace
}  // namespace quintet
