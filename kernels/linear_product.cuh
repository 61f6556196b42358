// What the kernels of products share (linear.cu, linear_few.cu, linear_hopper.cu).
#pragma once

#include "kernels/cuda.cuh"
#include "kernels/linear.h"
#include "kernels/mma.cuh"

namespace quintet::cuda {

__device__ __forceinline__ float Activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;  // not fmaxf, which makes 0 of NaN
    case Activation::kGeluTanh:
      return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    case Activation::kGeluErf:
      return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kTanh:
      return tanhf(x);
  }
  return x;
}

// kGeluTanh without a branch, to some units in the last place of f32: x * sigmoid(2 u) is
// 0.5 x (1 + tanh(u)).
__device__ __forceinline__ float QuickGeluExponent(float x) {
  constexpr float kScale = -2.0f * 0.7978845608028654f * 1.4426950408889634f;
  return kScale * (x + 0.044715f * x * x * x);
}
__device__ __forceinline__ float QuickGelu(float x) {
  return __fdividef(x, 1.0f + Exp2(QuickGeluExponent(x)));
}

// One product with the epilogue that its stage does: y, bias and residual as in LinearArgs.
struct Product {
  Tensor x;  // [rows, k] of the weight's type
  const LinearWeight* w;
  Tensor bias, residual, y;
  float alpha;
  Activation activation;
  void* workspace;
  // x [rows, k] f32 is normalised first (norm.h): only for RunFewRows.
  Tensor norm_gamma, norm_beta;
  float norm_eps;
  KvOutput kv;  // only for RunFewRows
  // Halves of norms (LinearArgs): only for RunFewRows.
  Tensor x_squares;
  NormOutput next_norm;
};

// Weights that the kernels of few rows multiply as they are.
inline bool IsHalf(WeightType type) {
  return type == WeightType::kBF16 || type == WeightType::kF16;
}

// Products of few rows with bf16 or f16 weights, in linear_few.cu. False where the shape is not for
// them: nothing is queued then. x is of the weight's type, or f32 and rounded to it on the way.
bool RunFewRows(const Product& p, Stream& stream);

// Whether they write keys and values to their slots, and what LinearNormParts and
// LinearTakesSquares ask.
bool FewRowsStoreKv(const LinearWeight& w, int64_t rows);
int64_t FewRowsNormParts(const LinearWeight& w, int64_t rows);
bool FewRowsTakeSquares(const LinearWeight& w, int64_t rows);

// The same of up to some hundreds of rows on Hopper, in linear_hopper.cu; x is of the weight's
// type.
bool RunHopperRows(const LinearArgs& args, Stream& stream);
bool HopperRowsStoreKv(const LinearWeight& w, int64_t rows, const Device& device);
int64_t HopperRowsNormParts(const LinearWeight& w, int64_t rows, const Device& device);
bool HopperRowsTakeSquares(const LinearWeight& w, int64_t rows, const Device& device);

// Products of many rows on Hopper, gated or scattered, in linear_many.cu: how many rows make that
// worth it, whether it takes this product, once x is of the weight's type, and the product.
int64_t LeastManyRows(const LinearWeight& w);
bool ManyRowsTake(const LinearArgs& args, const Device& device);
void ManyRowsLinear(const LinearArgs& args, Stream& stream);

// Products of any shape with weights that are not quantised, in linear.cu. The kernels of few and
// of Hopper's rows ask for weights before they wait for the kernel before them; these do not, so it
// may have written the weights.
void WideLinear(const LinearArgs& args, Stream& stream);

// Products with quantised weights, and their scratch, in linear_quantized.cu.
void QuantizedLinear(const LinearArgs& args, Stream& stream);
int64_t QuantizedScratchBytes(const LinearWeight& w, int64_t rows, const Stream& stream);

}  // namespace quintet::cuda
