// Adapters that are not merged, on a GPU: outputs equal PEFT's within the rounding of the weights'
// type, also where calls are launched as CUDA graphs, and rows without an adapter are those of the
// base model.
#include <memory>
#include <string>

#include "models/model.h"
#include "tests/catch.h"
#include "tests/models/adapters/recorded_adapter.h"

namespace quintet {
namespace {

double Tolerance(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return 1e-4;
    case WeightType::kF16:
      return 0.01;
    default:
      return 0.06;
  }
}

TEST_CASE("Adapters on a GPU give PEFT's outputs") {
  auto device = Device::Open(0);
  if (!device.ok()) {  // ctest recognises a skipped test by the word "skipped"
    WARN("skipped: " << device.status().message());
    return;
  }
  ThreadPool pool(2);
  for (const char* name : {"flan-all", "kohya", "t5-qv", "umt5-regex"}) {
    for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16,
                                  WeightType::kI8, WeightType::kF8}) {
      INFO(name << " " << WeightTypeName(type));
      const RecordedAdapter record(name);
      LoadOptions options = {.limits = RecordedLimits()};
      options.device = device->get();
      options.weights = type;
      const auto base_model = Model::Load(record.base, options, &pool);
      REQUIRE(base_model.ok());
      options.adapters = {{"first", record.path}, {"second", record.path}};
      const auto model = Model::Load(record.base, options, &pool);
      INFO(model.status());
      REQUIRE(model.ok());
      const size_t rows = record.inputs.size();
      const ForwardOutputs base = RunRecorded(record, base_model->get());
      std::vector<int32_t> mixed(rows, -1);
      for (size_t r = 1; r < rows; ++r) mixed[r] = static_cast<int32_t>(r % 2);
      // The first rounds run without a graph, later ones with it.
      for (int round = 0; round < 3; ++round) {
        const ForwardOutputs adapted =
            RunRecorded(record, model->get(), std::vector<int32_t>(rows, 1));
        CHECK(RelativeDifference(adapted.logits, record.logits) < Tolerance(type));
        if (!record.states.empty()) {
          CHECK(RelativeDifference(adapted.states, record.states) < Tolerance(type));
        }
        CHECK(RelativeDifference(RunRecorded(record, model->get()).logits, base.logits) <
              Tolerance(type) / 10);
        const ForwardOutputs both = RunRecorded(record, model->get(), mixed);
        const TokenRows& outputs = record.targets.empty() ? record.inputs : record.targets;
        const size_t width = base.logits.size() / static_cast<size_t>(TotalTokens(outputs));
        const auto first_end = static_cast<std::ptrdiff_t>(outputs[0].size() * width);
        const auto part = [&](const std::vector<float>& all, bool first) {
          return first ? std::vector<float>(all.begin(), all.begin() + first_end)
                       : std::vector<float>(all.begin() + first_end, all.end());
        };
        CHECK(RelativeDifference(part(both.logits, true), part(base.logits, true)) <
              Tolerance(type));
        CHECK(RelativeDifference(part(both.logits, false), part(adapted.logits, false)) <
              Tolerance(type));
      }
    }
  }
}

}  // namespace
}  // namespace quintet
