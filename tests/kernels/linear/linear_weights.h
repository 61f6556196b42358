// Shared by the GEMM tests: indices, random values, weights and their types, and activation
// functions in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "tests/kernels/test_backend.h"

namespace quintet {

constexpr float kEps = 1e-5f;  // of norms

inline size_t At(int64_t i) { return static_cast<size_t>(i); }

inline std::vector<float> Random(int64_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(generator);
  return values;
}

inline LinearWeight MakeWeight(const std::vector<float>& w, int64_t n, int64_t k, WeightType type,
                               bool gated, Device* device = nullptr) {
  LinearWeight weight = *LinearWeight::Allocate(n, k, type, gated, device);
  weight.Pack(0, Tensor::F32(w.data(), {n, k}));
  return weight;
}

// Returns the values by which a GEMM with the weights w [n, k] of this type multiplies: w rounded
// or, for quantised types, quantised and dequantised.
inline std::vector<float> StoredWeights(std::vector<float> w, int64_t n, int64_t k,
                                        WeightType type) {
  const DType dtype = WeightDType(type);
  if (!IsQuantized(type)) return RoundedTo(dtype, std::move(w));
  std::vector<char> bytes(w.size());
  std::vector<float> scales(At(n)), values(w.size());
  QuantizeRows(Tensor::F32(w.data(), {n, k}), Tensor::Dense(bytes.data(), dtype, {n, k}),
               Tensor::F32(scales.data(), {n}));
  ConvertToF32(bytes.data(), dtype, n * k, values.data());
  for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / At(k)];
  return values;
}

inline std::vector<WeightType> Types(Device* device = nullptr) {
  std::vector<WeightType> types;
  for (WeightType type :
       {WeightType::kF32, WeightType::kI8, WeightType::kBF16, WeightType::kF16, WeightType::kF8}) {
    if (WeightTypeSupported(type, device)) types.push_back(type);
  }
  return types;
}

inline double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
  }
  return 0;
}

}  // namespace quintet
