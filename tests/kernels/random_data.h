// Reproducible inputs for op tests.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/runtime/cpu_features.h"

namespace quintet {

class RandomData {
 public:
  explicit RandomData(uint32_t seed) : engine_(seed) {}

  // Returns a number uniform in [-1, 1), computed from the raw output of the random engine, because
  // the standard distributions differ between standard libraries.
  float Value() { return static_cast<float>(engine_() >> 8) * 0x1p-23f - 1.0f; }
  // Uniform in [0, n).
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_()) % n; }
  std::vector<float> Values(int64_t n, float scale = 1.0f) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& v : values) v = scale * Value();
    return values;
  }

 private:
  std::mt19937 engine_;
};

// Runs `body` once for every instruction set that this CPU supports.
template <typename Body>
void ForEachIsa(const Body& body) {
  for (CpuIsa isa : {CpuIsa::kBaseline, CpuIsa::kAvx2, CpuIsa::kBest}) {
    SetCpuIsaForTest(isa);
    body();
  }
  SetCpuIsaForTest(CpuIsa::kBest);
}

}  // namespace quintet
