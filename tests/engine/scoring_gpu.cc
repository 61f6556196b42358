// Compares scores of GPT-2 on a GPU with DenseGpt2, plain loops in double on the CPU.
#include <memory>

#include "tests/catch.h"
#include "tests/engine/scoring_cases.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

TEST_CASE("scores on a GPU equal a dense model with the same mask") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  const struct {
    WeightType type;
    const char* name;
    double limit;
  } types[] = {{WeightType::kF32, "f32", 1e-4},
               {WeightType::kF16, "f16", 1e-2},
               {WeightType::kBF16, "bf16", 5e-2}};
  for (const char* golden_case : {"gpt2", "gpt2-variant"}) {
    for (const auto& type : types) {
      const double error = LargestScoreError(golden_case, type.type, device.get());
      WARN(golden_case << " " << type.name << ": log-probabilities within " << error);
      CHECK(error <= type.limit);
    }
  }
}

}  // namespace
}  // namespace quintet
