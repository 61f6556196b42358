#include "models/t5.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <span>
#include <string>

#include "models/checkpoint/json.h"
#include "tests/catch.h"
#include "tests/models/allocation_count.h"
#include "tests/models/checkpoint/checkpoint.h"
#include "tests/models/must_load.h"
#include "tests/models/row_runner.h"

namespace quintet {
namespace {

std::vector<int32_t> Ramp(int64_t n, int32_t start, int32_t step, int32_t modulus) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i)
    ids.push_back(2 + (start + static_cast<int32_t>(i) * step) % modulus);
  return ids;
}

// Returns 700 tokens in three sequences, which begin at tokens 0, 400 and 401. Some blocks of rows
// that a kernel processes together therefore contain the end of one sequence and the beginning of
// the next.
TokenRows ThreeRows() { return {Ramp(400, 3, 7, 90), Ramp(1, 5, 1, 90), Ramp(299, 11, 13, 90)}; }

// A copy of a golden case with changes to config.json: keys are set, or removed if null.
class Variant {
 public:
  Variant(const std::string& name, const nlohmann::json& changes)
      : directory_(std::filesystem::temp_directory_path() / ("quintet_variant_" + name)) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
    std::filesystem::copy_file(GoldenDirectory(name) + "/model.safetensors",
                               directory_ / "model.safetensors");
    auto config = ReadJsonFile(GoldenDirectory(name) + "/config.json", 1 << 20);
    REQUIRE(config.ok());
    for (const auto& [key, value] : changes.items()) {
      if (value.is_null()) {
        config->erase(key);
      } else {
        (*config)[key] = value;
      }
    }
    std::ofstream(directory_ / "config.json") << config->dump();
  }
  ~Variant() { std::filesystem::remove_all(directory_); }
  std::string directory() const { return directory_.string(); }

 private:
  std::filesystem::path directory_;
};

std::vector<float> LogitsOf(const std::string& directory, ThreadPool* pool) {
  auto model = MustLoad(directory, pool);
  RowRunner runner(model.get());
  runner.Encode({Ramp(20, 1, 3, 90), Ramp(9, 2, 5, 90)}, kAll);
  return runner.Logits(runner.Decode({Ramp(12, 3, 7, 90), Ramp(5, 4, 9, 90)}, kAll));
}

TEST_CASE("T5: one GEMM writes the cross-attention keys and values of all decoder layers") {
  const char* name = GENERATE("t5-v1_1", "fat5-rope-half-interleaved", "fat5-xpos");
  INFO(name);
  constexpr int64_t kRows = 600;  // more than one block
  ThreadPool pool(2);
  auto model = MustLoad(GoldenDirectory(name), &pool);
  const ModelConfig& config = model->config();
  REQUIRE(config.decoder_layers > 1);
  RowRunner runner(model.get());

  runner.Encode({Ramp(kRows, 1, 3, 90)}, kAll);
  std::vector<int32_t> slots(kRows);
  std::iota(slots.begin(), slots.end(), 32);
  int64_t before = model->stream().gemms();
  model->ProjectCross(model->EncodedStates(), 0, slots, {});
  CHECK(model->stream().gemms() - before == 1);

  before = model->stream().gemms();
  runner.Encode({Ramp(100, 1, 3, 90)}, kAll);
  CHECK(model->stream().gemms() - before == 4 * config.encoder_layers);

  before = model->stream().gemms();
  runner.Decode({Ramp(10, 1, 3, 90)}, kAll);
  CHECK(model->stream().gemms() - before == 1 + 6 * config.decoder_layers);
}

TEST_CASE("T5: hidden states are bit-identical in any slicing, alone or packed") {
  ThreadPool pool(2);
  const TokenRows rows = ThreeRows();
  for (const char* name : {"t5-v1_1", "fat5-t5", "fat5-alibi", "fat5-fire-32", "fat5-xpos",
                           "longt5-local", "longt5-tglobal"}) {
    INFO(name);
    auto model = MustLoad(GoldenDirectory(name), &pool);
    RowRunner runner(model.get());
    const std::vector<float> whole = runner.Encode(rows, kAll);
    CHECK(whole == runner.Encode(rows, 1));
    CHECK(whole == runner.Encode(rows, 1000));
    std::vector<float> alone;
    for (const auto& row : rows) {
      const std::vector<float> states = runner.Encode({row}, kAll);
      alone.insert(alone.end(), states.begin(), states.end());
    }
    CHECK(whole == alone);
  }
}

TEST_CASE("T5: EncodeSlice does about `work` units of work") {
  ThreadPool pool(1);
  auto model = MustLoad(GoldenDirectory("t5-v1_1"), &pool);
  const std::vector<int32_t> tokens = Ramp(2000, 3, 7, 90);
  const std::vector<int32_t> offsets = {0, 2000};
  const auto slices = [&](int64_t work) {
    model->BeginEncode({.tokens = tokens, .offsets = offsets});
    int64_t count = 1;
    while (!model->EncodeSlice(work)) ++count;
    return count;
  };
  CHECK(slices(kAll) == 1);
  // One token in one layer counts as one unit of work for EncodeSlice; attention over many keys
  // counts extra. `units` is the total without that extra work. Encoding in slices of units / 10
  // therefore takes at least 10 slices, and may take many more.
  const int64_t units = 2000 * model->config().encoder_layers;
  CHECK(slices(units / 10) >= 10);
  CHECK(slices(units / 10) <= 200);
}

TEST_CASE("T5: BeginEncode drops an incomplete batch") {
  ThreadPool pool(1);
  auto model = MustLoad(GoldenDirectory("t5-v1_1"), &pool);
  RowRunner runner(model.get());
  const TokenRows rows = ThreeRows();
  const std::vector<float> expected = runner.Encode(rows, kAll);
  const std::vector<int32_t> other = Ramp(800, 1, 1, 80), offsets = {0, 800};
  model->BeginEncode({.tokens = other, .offsets = offsets});
  CHECK_FALSE(model->EncodeSlice(900));
  CHECK(runner.Encode(rows, kAll) == expected);
}

// Two beams of one request read the same encoder output and the same cache slots of the prompt.
// Beam 1 continues the tokens of beam 0, whose slots it reads, too.
TEST_CASE("T5: beams share a source and read each other's slots") {
  ThreadPool pool(2);
  for (const char* name : {"t5-v1_1", "umt5", "fat5-rope"}) {
    INFO(name);
    auto model = MustLoad(GoldenDirectory(name), &pool);
    RowRunner runner(model.get());
    const std::vector<int32_t> source = Ramp(37, 5, 3, 90);
    const TokenRows beams = {{0, 17, 23, 9, 40}, {0, 17, 23, 31, 8}};
    const int64_t d_model = model->config().d_model;
    runner.Encode({source, source}, kAll);
    const std::vector<float> apart = runner.Decode(beams, kAll);

    runner.Encode({source}, kAll);
    std::vector<int32_t> source_slots(37);
    std::iota(source_slots.rbegin(), source_slots.rend(), 200);
    model->ProjectCross(model->EncodedStates(), 0, source_slots, {});
    const std::vector<int32_t> source_lens = {37};
    const std::vector<int32_t> one = {0, 1}, prefix = {0, 17, 23}, prefix_offsets = {0, 3},
                               three = {3};
    const std::vector<int32_t> prefix_slots = {64, 65, 66};
    model->Decode({.tokens = prefix,
                   .offsets = prefix_offsets,
                   .kv_lens = three,
                   .slots = prefix_slots.data(),
                   .slots_stride = 3,
                   .group_offsets = one,
                   .source_slots = source_slots.data(),
                   .source_slots_stride = 37,
                   .source_lens = source_lens});
    const std::vector<int32_t> tokens = {9, 40, 31, 8}, offsets = {0, 2, 4}, kv_lens = {5, 5};
    const std::vector<int32_t> slots = {64, 65, 66, 67, 68, -1, 64, 65, 66, 96, 97, -1};
    const std::vector<int32_t> groups = {0, 2}, wanted = {1, 3};
    const Tensor states = model->Decode({.tokens = tokens,
                                         .offsets = offsets,
                                         .kv_lens = kv_lens,
                                         .slots = slots.data(),
                                         .slots_stride = 6,
                                         .group_offsets = groups,
                                         .source_slots = source_slots.data(),
                                         .source_slots_stride = 37,
                                         .source_lens = source_lens,
                                         .output_rows = wanted});
    REQUIRE(states.dim[0] == 2);
    CHECK(std::equal(states.f32(), states.f32() + d_model, apart.begin() + 4 * d_model));
    CHECK(std::equal(states.f32() + d_model, states.f32() + 2 * d_model,
                     apart.begin() + 9 * d_model));
  }
}

TEST_CASE("T5: ProjectCross of copied encoder states gives the same keys and values") {
  ThreadPool pool(2);
  for (const char* name : {"t5-v1_1", "fat5-xpos"}) {
    INFO(name);
    auto model = MustLoad(GoldenDirectory(name), &pool);
    RowRunner runner(model.get());
    const std::vector<float> states = runner.Encode(ThreeRows(), kAll);
    const KvCache& cache = model->cache();
    const auto page = [&](int64_t index) {
      const float* begin = cache.as<float>() + index * cache.page_elements();
      return std::vector<float>(begin, begin + cache.page_elements());
    };
    std::fill(cache.as<float>(), cache.as<float>() + 64 * cache.page_elements(), 0.0f);
    std::vector<int32_t> slots(299);
    std::iota(slots.begin(), slots.end(), 0);
    model->ProjectCross(model->EncodedStates().Rows(401, 700), 0, slots, {});
    std::vector<std::vector<float>> expected;
    for (int64_t i = 0; i < 19; ++i) expected.push_back(page(i));
    CHECK(*std::max_element(expected[18].begin(), expected[18].end()) > 0);
    for (int32_t& slot : slots) slot += 32 * static_cast<int32_t>(cache.page_size);
    const int64_t d_model = model->config().d_model;
    const Tensor kept = Tensor::F32(states.data(), {700, d_model}).Rows(401, 700);
    for (const auto& [begin, end] : {std::pair{0, 130}, {130, 131}, {131, 299}}) {
      model->ProjectCross(kept.Rows(begin, end), begin,
                          std::span(slots).subspan(begin, end - begin), {});
    }
    for (int64_t i = 0; i < 19; ++i) CHECK(page(32 + i) == expected[static_cast<size_t>(i)]);
  }
}

TEST_CASE("T5: TargetLogProbs agrees with Logits") {
  ThreadPool pool(2);
  auto model = MustLoad(GoldenDirectory("t5-v1_0"), &pool);
  RowRunner runner(model.get());
  runner.Encode({Ramp(20, 1, 3, 90)}, kAll);
  const std::vector<float> states = runner.Decode({Ramp(300, 3, 7, 90)}, kAll);
  const std::vector<float> logits = runner.Logits(states);
  const int64_t vocab = model->config().vocab, rows = 300, top = 3;
  const std::vector<int32_t> targets = Ramp(rows, 9, 11, 90);
  std::vector<float> log_probs(rows), top_log_probs(rows * top);
  std::vector<int32_t> top_tokens(rows * top);
  model->TargetLogProbs(Tensor::F32(states.data(), {rows, model->config().d_model}),
                        Tensor::Dense(targets.data(), DType::kI32, {rows}),
                        Tensor::F32(log_probs.data(), {rows}),
                        Tensor::F32(top_log_probs.data(), {rows, top}),
                        Tensor::Dense(top_tokens.data(), DType::kI32, {rows, top}));
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = logits.data() + r * vocab;
    double sum = 0;
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
    CHECK(log_probs[r] == Approx(row[targets[r]] - std::log(sum)).margin(1e-5));
    const int64_t best = std::max_element(row, row + vocab) - row;
    CHECK(top_tokens[r * top] == best);
    CHECK(top_log_probs[r * top] == Approx(row[best] - std::log(sum)).margin(1e-5));
  }
}

TEST_CASE("T5: transformers 4.x and 5.x configurations of one model give the same logits") {
  ThreadPool pool(1);
  const std::vector<float> v1_0 = LogitsOf(GoldenDirectory("t5-v1_0"), &pool);
  const std::vector<float> v1_1 = LogitsOf(GoldenDirectory("t5-v1_1"), &pool);
  CHECK(v1_0 ==
        LogitsOf(Variant("t5-v1_0", {{"scale_decoder_outputs", nullptr}}).directory(), &pool));
  CHECK(v1_1 ==
        LogitsOf(Variant("t5-v1_1", {{"scale_decoder_outputs", nullptr}}).directory(), &pool));
  const nlohmann::json resaved = {{"scale_decoder_outputs", false}, {"tie_word_embeddings", true}};
  CHECK(v1_1 == LogitsOf(Variant("t5-v1_1", resaved).directory(), &pool));
  // If the config lacks scale_decoder_outputs, logits are scaled unless tie_word_embeddings is
  // false. Whether the files contain lm_head.weight makes no difference.
  const nlohmann::json no_scale_key = {{"scale_decoder_outputs", nullptr},
                                       {"tie_word_embeddings", true}};
  CHECK(LogitsOf(Variant("t5-v1_1", {{"scale_decoder_outputs", true}}).directory(), &pool) ==
        LogitsOf(Variant("t5-v1_1", no_scale_key).directory(), &pool));
  // The scale changes the logits; hence comparisons of logits detect a wrong scale.
  CHECK(v1_1 != LogitsOf(Variant("t5-v1_1", {{"scale_decoder_outputs", true}}).directory(), &pool));
}

TEST_CASE("T5: int8 and bf16 weights stay close to f32") {
  ThreadPool pool(2);
  for (const WeightType type : {WeightType::kI8, WeightType::kBF16}) {
    if (!WeightTypeSupported(type)) continue;
    std::vector<float> logits[2];
    for (const bool narrow : {false, true}) {
      LoadOptions options;
      if (narrow) options.weights = type;
      auto model = Model::Load(GoldenDirectory("t5-v1_1"), options, &pool);
      INFO(model.status());
      REQUIRE(model.ok());
      RowRunner runner(model->get());
      runner.Encode(ThreeRows(), 5000);
      logits[narrow] = runner.Logits(runner.Decode({Ramp(12, 3, 7, 90), {0}, {0, 9}}, kAll));
    }
    float largest = 0, error = 0;
    for (size_t i = 0; i < logits[0].size(); ++i) {
      largest = std::max(largest, std::abs(logits[0][i]));
      error = std::max(error, std::abs(logits[0][i] - logits[1][i]));
    }
    CHECK(error > 0);
    CHECK(error < 0.1f * largest);
  }
}

TEST_CASE("T5: no call of the forward pass allocates") {
  ThreadPool pool(2);
  for (const char* name : {"t5-v1_1", "fat5-xpos"}) {
    INFO(name);
    auto model = MustLoad(GoldenDirectory(name), &pool);
    const std::vector<int32_t> tokens = Ramp(300, 3, 7, 90), offsets = {0, 100, 300};
    std::vector<int32_t> source_slots(200);
    std::iota(source_slots.begin(), source_slots.end(), 0);
    const std::vector<int32_t> prompt = {0, 7, 9}, prompt_offsets = {0, 3}, kv_lens = {3};
    const std::vector<int32_t> slots = {320, 321, 322}, groups = {0, 1}, source_lens = {200},
                               wanted = {2};
    std::vector<float> logits(static_cast<size_t>(model->config().vocab));
    const auto run = [&] {
      model->BeginEncode({.tokens = tokens, .offsets = offsets});
      while (!model->EncodeSlice(50)) {
      }
      model->ProjectCross(model->EncodedStates().Rows(100, 300), 0, source_slots, {});
      const Tensor states = model->Decode({.tokens = prompt,
                                           .offsets = prompt_offsets,
                                           .kv_lens = kv_lens,
                                           .slots = slots.data(),
                                           .slots_stride = 3,
                                           .group_offsets = groups,
                                           .source_slots = source_slots.data(),
                                           .source_slots_stride = 200,
                                           .source_lens = source_lens,
                                           .output_rows = wanted});
      model->Logits(states, Tensor::F32(logits.data(), {1, model->config().vocab}));
    };
    run();
    const int64_t before = AllocationCount();
    run();
    CHECK(AllocationCount() == before);
    CHECK(std::any_of(logits.begin(), logits.end(), [](float x) { return x != 0; }));
  }
}

TEST_CASE("Model: Load names the limit that is out of range") {
  ThreadPool pool(1);
  const auto message = [&](const ModelLimits& limits) {
    LoadOptions options;
    options.limits = limits;
    const auto model = Model::Load(GoldenDirectory("fat5-tokcls"), options, &pool);
    CHECK(absl::IsInvalidArgument(model.status()));
    return std::string(model.status().message());
  };
  CHECK(message({.max_encode_tokens = 0}) == "max_encode_tokens: 0 is not in [1, 16777216]");
  CHECK_THAT(message({.max_step_tokens = -1}),
             Catch::Matchers::ContainsSubstring("max_step_tokens"));
  CHECK_THAT(message({.max_step_sequences = int64_t{1} << 40}),
             Catch::Matchers::ContainsSubstring("max_step_sequences"));
  CHECK_THAT(message({.cache_pages = int64_t{1} << 31}),
             Catch::Matchers::ContainsSubstring("cache_pages"));
  CHECK_THAT(message({.page_size = 0}), Catch::Matchers::ContainsSubstring("page_size"));
}

TEST_CASE("Model: Load names a weight type that the CPU does not support") {
  ThreadPool pool(1);
  LoadOptions options;
  options.weights = WeightType::kF16;
  const auto model = Model::Load(GoldenDirectory("fat5-tokcls"), options, &pool);
  CHECK(absl::IsUnimplemented(model.status()));
  CHECK(model.status().message() == "weight type f16 is not supported on this CPU: it needs a GPU");
  options.weights = WeightType::kF8W8A8;
  CHECK(Model::Load(GoldenDirectory("fat5-tokcls"), options, &pool).status().message() ==
        "weight type fp8-w8a8 is not supported on this CPU: it needs a Hopper GPU (H100, H200)");
}

}  // namespace
}  // namespace quintet
