// Tests adapters that are not merged, on a GPU, with and without CUDA graphs. The outputs must be
// about as close to PEFT's as the outputs of the merged model with the same weight type. Rows
// without an adapter must have the outputs of the base model.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "models/adapter_slots.h"
#include "models/adapters/adapter.h"
#include "models/convert/convert.h"
#include "models/merged_weights.h"
#include "models/model.h"
#include "tests/catch.h"
#include "tests/models/adapters/recorded_adapter.h"
#include "tests/models/must_load.h"
#include "tests/models/scratch_directory.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

std::string MustMerge(const RecordedAdapter& record, const std::string& target) {
  const absl::StatusOr<ModelConfig> config = ReadModelConfig(record.base);
  REQUIRE(config.ok());
  const absl::StatusOr<Adapter> adapter = ReadAdapter(record.path, *config);
  REQUIRE(adapter.ok());
  ConvertOptions options;
  options.source = record.base;
  options.target = target;
  options.dtype = DType::kF32;
  options.adapter = &*adapter;
  REQUIRE(Convert(options).ok());
  return target;
}

// Returns the outputs of the first row, or of all other rows. `all` holds the outputs of all rows,
// packed.
std::vector<float> PartOf(const std::vector<float>& all, const TokenRows& rows, bool first) {
  const size_t width = all.size() / static_cast<size_t>(TotalTokens(rows));
  const auto end = static_cast<std::ptrdiff_t>(rows[0].size() * width);
  return first ? std::vector<float>(all.begin(), all.begin() + end)
               : std::vector<float>(all.begin() + end, all.end());
}

// Returns the outputs to compare: the encoder's hidden states if there are any, else the logits.
const std::vector<float>& Compared(const ForwardOutputs& outputs) {
  return outputs.states.empty() ? outputs.logits : outputs.states;
}

TEST_CASE("Adapters on a GPU are as exact as merged ones") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  for (const char* name : {"flan-all", "kohya", "longt5-some", "t5-qv", "umt5-regex"}) {
    const RecordedAdapter record(name);
    ScratchDirectory scratch;
    const std::string merged_directory = MustMerge(record, scratch / "merged");
    for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                  WeightType::kI8, WeightType::kF8}) {
      INFO(name << " " << WeightTypeName(type));
      LoadOptions options = {.weights = type, .device = device.get(), .limits = RecordedLimits()};
      const auto base_model = MustLoad(record.base, &pool, options);
      const auto merged_model = MustLoad(merged_directory, &pool, options);
      options.adapters = {{"first", record.path}, {"second", record.path}};
      const auto model = MustLoad(record.base, &pool, options);
      const std::vector<float> base = Compared(RunRecorded(record, base_model.get()));
      const std::vector<float> merged = Compared(RunRecorded(record, merged_model.get()));
      const std::vector<float> expected = record.states.empty() ? record.logits : record.states;
      const double tolerance = 3 * RelativeDifference(merged, expected) + 1e-4;
      const size_t rows = record.inputs.size();
      std::vector<int32_t> mixed(rows, -1);
      for (size_t r = 1; r < rows; ++r) mixed[r] = static_cast<int32_t>(r % 2);
      // The first rounds run without a graph, later ones with it.
      for (int round = 0; round < 3; ++round) {
        const ForwardOutputs outputs =
            RunRecorded(record, model.get(), std::vector<int32_t>(rows, 1));
        const std::vector<float> adapted = Compared(outputs);
        CHECK(RelativeDifference(adapted, expected) < tolerance);
        if (type == WeightType::kF32) {
          CHECK(RelativeDifference(outputs.logits, record.logits) < 1e-4);
        }
        CHECK(RelativeDifference(Compared(RunRecorded(record, model.get())), base) < tolerance);
        const std::vector<float> both = Compared(RunRecorded(record, model.get(), mixed));
        CHECK(RelativeDifference(PartOf(both, record.inputs, true),
                                 PartOf(base, record.inputs, true)) < tolerance);
        CHECK(RelativeDifference(PartOf(both, record.inputs, false),
                                 PartOf(adapted, record.inputs, false)) < tolerance);
        CHECK(RelativeDifference(base, expected) > 0.03);
      }
    }
  }
}

// LoRA terms are added before keys and values are rounded to fp8.
TEST_CASE("Adapters on a GPU change a cache of fp8 as merged ones do") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  for (const char* name : {"flan-all", "t5-qv", "umt5-regex"}) {
    const RecordedAdapter record(name);
    ScratchDirectory scratch;
    const std::string merged_directory = MustMerge(record, scratch / "merged");
    for (const WeightType type : {WeightType::kF16, WeightType::kBF16, WeightType::kI8}) {
      LoadOptions options = {
          .weights = type, .fp8_cache = true, .device = device.get(), .limits = RecordedLimits()};
      const auto merged_model = MustLoad(merged_directory, &pool, options);
      options.adapters = {{"first", record.path}, {"second", record.path}};
      const auto model = MustLoad(record.base, &pool, options);
      const size_t rows = record.inputs.size();
      for (int round = 0; round < 3; ++round) {
        const std::vector<float> merged = RunRecorded(record, merged_model.get()).logits;
        const std::vector<float> adapted =
            RunRecorded(record, model.get(), std::vector<int32_t>(rows, 1)).logits;
        const std::vector<float> base = RunRecorded(record, model.get()).logits;
        const double of_merged = MeanDifference(merged, record.logits);
        const double of_adapted = MeanDifference(adapted, record.logits);
        const double of_base = MeanDifference(base, record.logits);
        CAPTURE(name, WeightTypeName(type), round, of_merged, of_adapted, of_base);
        // Rounding keys and values to fp8 changes these small random models by much and in ways
        // that differ between the two; an adapter that is not applied changes them by more.
        CHECK(of_adapted < of_base);
        CHECK(of_adapted < 2.5 * of_merged + 0.01);
      }
    }
  }
}

TEST_CASE("Adapters that take turns in a slot on a GPU give what each gives alone") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  const RecordedAdapter record("flan-all");
  ScratchDirectory scratch;
  LoadOptions options = {
      .weights = WeightType::kBF16, .device = device.get(), .limits = RecordedLimits()};
  for (int i = 0; i < 4; ++i) {
    const std::string path = scratch / std::to_string(i);
    WriteScaled(record, path, 1.0f - 0.5f * static_cast<float>(i));
    options.adapters.push_back({std::to_string(i), path});
  }
  const auto roomy = MustLoad(record.base, &pool, options);
  options.adapter_slots = 1;
  const auto model = MustLoad(record.base, &pool, options);
  CHECK(model->memory().adapters < roomy->memory().adapters / 3);
  CHECK(model->memory().host_adapters > 0);
  const size_t rows = record.inputs.size();
  std::vector<std::vector<float>> alone;
  for (int32_t i = 0; i < 4; ++i) {
    alone.push_back(RunRecorded(record, roomy.get(), std::vector<int32_t>(rows, i)).logits);
    if (i > 0) CHECK(alone[0] != alone.back());
  }
  // Many turns, so that calls are launched as CUDA graphs, and so that adapters are loaded into the
  // slot while the device still runs earlier calls.
  for (int turn = 0; turn < 40; ++turn) {
    const int32_t i = (turn * turn + turn % 3) % 4;
    INFO("turn " << turn << ", adapter " << i);
    CHECK(RunRecorded(record, model.get(), std::vector<int32_t>(rows, i)).logits ==
          alone[static_cast<size_t>(i)]);
  }
  CHECK(model->adapter_slots()->fills() > 20);
}

// With kMinMergedLoraRows rows or more, GEMMs use a copy of W that contains the adapter's terms.
// With fewer rows, the terms are added to the product. Both round, so both are compared with f32.
TEST_CASE("An adapter changes long and short encodings alike") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  const RecordedAdapter record("flan-all");
  constexpr size_t kTokens = 256, kInputs = 2 * kMinMergedLoraRows / kTokens;
  TokenRows rows(kInputs, std::vector<int32_t>(kTokens));
  uint32_t next = 1;
  for (std::vector<int32_t>& row : rows) {
    for (int32_t& token : row) {
      next = next * 1664525 + 1013904223;
      token = static_cast<int32_t>(next >> 8) % 200;
    }
  }
  // The states of all inputs, encoded `together` at a time.
  const auto encode = [&](WeightType type, size_t together, int32_t adapter) {
    LoadOptions options = {.weights = type, .device = device.get(), .limits = RecordedLimits()};
    options.limits.max_encode_tokens = kInputs * kTokens;
    options.adapters = {{"first", record.path}};
    const auto model = MustLoad(record.base, &pool, options);
    RowRunner runner(model.get());
    runner.set_adapters(std::vector<int32_t>(together, adapter));
    std::vector<float> all;
    for (size_t begin = 0; begin < kInputs; begin += together) {
      const auto first = rows.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = first + static_cast<std::ptrdiff_t>(together);
      const std::vector<float> part = runner.Encode(TokenRows(first, last), int64_t{1} << 40);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  };
  const std::vector<float> exact = encode(WeightType::kF32, 2, 0);
  const double change = MeanDifference(encode(WeightType::kF32, 2, -1), exact);
  for (const WeightType type :
       {WeightType::kF16, WeightType::kBF16, WeightType::kI8, WeightType::kF8}) {
    const double together = MeanDifference(encode(type, kInputs, 0), exact);
    const double apart = MeanDifference(encode(type, 2, 0), exact);
    INFO(WeightTypeName(type) << ": errors " << together << ", " << apart << "; change " << change);
    CHECK(together < 1.5 * apart);
    CHECK(together < 0.5 * change);
  }
}

// Two adapters alternate, each for more calls than it takes to merge it into MergedWeights. Between
// them, batches in which only some inputs have an adapter read the base weights, too. W + b a is
// rounded, so the errors against f32 are compared with those of the factors.
TEST_CASE("The copy of the weights with the adapter in use is as exact as its factors") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  ThreadPool pool(2);
  const RecordedAdapter record("flan-all");
  ScratchDirectory scratch;
  const std::string half = scratch / "half";
  WriteScaled(record, half, 0.5f);
  LoadOptions options = {.device = device.get(), .limits = RecordedLimits()};
  options.adapters = {{"whole", record.path}, {"half", half}};
  const auto exact_model = MustLoad(record.base, &pool, options);
  const auto exact = [&](const std::vector<int32_t>& adapters) {
    return RunRecorded(record, exact_model.get(), adapters).logits;
  };
  const size_t rows = record.inputs.size();
  std::vector<int32_t> mixed(rows, 1);
  mixed[0] = -1;
  for (const WeightType type : {WeightType::kF16, WeightType::kBF16}) {
    options.weights = type;
    options.merged_weights = false;
    const auto apart = MustLoad(record.base, &pool, options);
    options.merged_weights = true;
    const auto model = MustLoad(record.base, &pool, options);
    CHECK(apart->memory().merged_weights == 0);
    REQUIRE(model->memory().merged_weights > 0);
    const std::vector<float> base = RunRecorded(record, apart.get()).logits;
    for (int turn = 0; turn < 4; ++turn) {
      const std::vector<int32_t> adapters(rows, turn % 2);
      const std::vector<float> expected = exact(adapters);
      const std::vector<float> factors = RunRecorded(record, apart.get(), adapters).logits;
      const double error = MeanDifference(factors, expected);
      const double change = MeanDifference(base, expected);
      std::vector<float> first, last;
      for (int64_t call = 0; call <= MergedWeights::kCallsToMerge; ++call) {
        last = RunRecorded(record, model.get(), adapters).logits;
        if (call == 0) first = last;
        INFO(WeightTypeName(type) << ", turn " << turn << ", call " << call << ": " << error);
        CHECK(MeanDifference(last, expected) < std::min(3 * error, 0.5 * change));
      }
      CHECK(first == factors);  // the adapter is not merged yet
      CHECK(last != factors);
      CHECK(RunRecorded(record, model.get()).logits == base);
      const std::vector<float> both = RunRecorded(record, apart.get(), mixed).logits;
      CHECK(MeanDifference(RunRecorded(record, model.get(), mixed).logits, exact(mixed)) <
            3 * MeanDifference(both, exact(mixed)));
    }
  }
}

}  // namespace
}  // namespace quintet
