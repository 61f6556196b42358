// Shared by the GEMM kernels (linear.cu, linear/gemv.cu, linear/split_k.cu, ...): activations, the
// arguments of a GEMM, and the entry points of the kernels.
#pragma once

#include "kernels/linear/linear.h"
#include "kernels/ptx/mma.cuh"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {

__device__ __forceinline__ float Activated(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0.0f ? 0.0f : x;  // not fmaxf, which turns NaN into 0
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

// Returns t = -2u log2(e) with u = sqrt(2/pi) (x + 0.044715 x^3). With this t, GELU (tanh) is x /
// (1 + 2^t), which QuickGelu computes without a branch, accurate to a few ulps of f32.
__device__ __forceinline__ float QuickGeluExponent(float x) {
  constexpr float kScale = -2.0f * 0.7978845608028654f * 1.4426950408889634f;
  return kScale * (x + 0.044715f * x * x * x);
}
__device__ __forceinline__ float QuickGelu(float x) {
  return __fdividef(x, 1.0f + Exp2(QuickGeluExponent(x)));
}

// Arguments of one GEMM and its epilogue. The members mean the same as those of LinearArgs
// (linear.h).
struct Gemm {
  Tensor x;  // [rows, k] of the weight type
  const WeightView* w;
  Tensor bias, residual, y;
  float alpha;
  Activation activation;
  void* workspace;  // for RunCublasLt, kCublasLtWorkspaceBytes bytes
  // Fused norm of x [rows, k] f32 (norm.h). Of the functions that take a Gemm, only RunGemv
  // supports it.
  Tensor norm_gamma, norm_beta;
  float norm_eps;
  KvOutput kv;  // only RunGemv supports it
  // Split RMSNorm: the epilogue of one GEMM computes the first half of an RMSNorm, and the epilogue
  // of the next GEMM computes the second half (linear.h). With x_squares, this GEMM computes the
  // second half of the norm of x; with next_norm, it computes the first half of the norm of y. Of
  // the functions that take a Gemm, only RunGemv supports these members.
  Tensor x_squares;
  NormOutput next_norm;
};

// Whether weights have 16-bit values, which the tensor-core kernels use without conversion.
inline bool IsHalf(WeightType type) {
  return type == WeightType::kBF16 || type == WeightType::kF16;
}

// GEMM by cuBLASLt with the device's plan for its shape (linear/cublas_plans.cuh). Returns false,
// with nothing enqueued, if cuBLASLt does not support it.
bool RunCublasLt(const Gemm& p, CudaStream& stream);
constexpr int64_t kCublasLtWorkspaceBytes = int64_t{32} << 20;  // recommended for Hopper

// Gemv for up to eight rows with bf16 or f16 weights, in linear/gemv.cu. Returns false, with
// nothing enqueued, if it does not support the shape. x has the weight type, or is f32 and is
// rounded to the weight type in the kernel.
bool RunGemv(const Gemm& p, CudaStream& stream);

// For GEMMs that RunGemv computes, the functions SupportsFusedNorm, SupportsKvStore, SplitNormParts
// and SupportsSplitNormInput (linear.h) return the results of the four functions below.
bool GemvSupportsFusedNorm(const WeightView& w, int64_t rows);
bool GemvSupportsKvStore(const WeightView& w, int64_t rows);
int64_t GemvSplitNormParts(const WeightView& w, int64_t rows);
bool GemvSupportsSplitNormInput(const WeightView& w, int64_t rows);

// Split-K GEMM for tens to a few hundred rows on Hopper, in linear/split_k.cu. RunSplitK returns
// false, with nothing enqueued, if it does not support the call; x must have the weight type (bf16
// if that has 8 bits). The
// functions SplitK... return what SupportsKvStore, SplitNormParts and SupportsSplitNormInput
// (linear.h) return for a GEMM that RunSplitK computes.
bool RunSplitK(const LinearArgs& args, CudaStream& stream);
bool SplitKSupportsKvStore(const WeightView& w, int64_t rows, const CudaStream& stream);
int64_t SplitKSplitNormParts(const WeightView& w, int64_t rows, const CudaStream& stream);
bool SplitKSupportsSplitNormInput(const WeightView& w, int64_t rows, const CudaStream& stream);
bool SplitKSupportsLora(const LinearArgs& args, const CudaStream& stream);  // SupportsLora

// Persistent GEMM for many rows on Hopper, with gated weights (gate and up rows) or a scattered
// output (ScatterOutput), in linear/persistent.cu. MinPersistentRows: the smallest number of rows
// for which it is used. PersistentTakes: whether it supports this GEMM; if x does not have the
// weight type, the caller must convert x first. PersistentLinear: runs it.
int64_t MinPersistentRows(const WeightView& w);
bool PersistentTakes(const LinearArgs& args, const CudaStream& stream);
void PersistentLinear(const LinearArgs& args, CudaStream& stream);

// GEMM of any shape with unquantised weights, in linear.cu. The previous kernel on the stream may
// have written the weights, because this GEMM loads them after it has waited for that kernel. (The
// gemv and split-K kernels load weights before that wait.)
void WideLinear(const LinearArgs& args, CudaStream& stream);

// GEMM of 8-bit values on Hopper, for weights whose type quantises inputs (QuantizesInputs), in
// linear/byte_gemm.cu. ByteGemmTakes: whether it supports the call.
bool ByteGemmTakes(const LinearArgs& args, const CudaStream& stream);
constexpr int64_t kMinQuantizedInputRows = 33;  // with fewer rows, x is not quantised
int64_t ByteGemmScratchBytes(const WeightView& w, int64_t rows);
void ByteGemm(const LinearArgs& args, CudaStream& stream);

// GEMM with quantised weights, and the size of its scratch memory in bytes, in linear/sliced.cu.
void QuantizedLinear(const LinearArgs& args, CudaStream& stream);
int64_t QuantizedScratchBytes(const WeightView& w, int64_t rows, const CudaStream& stream);
// GEMM with the weights of one adapter (LoraInput::adapter), in linear/sliced.cu.
// SupportsMergedLora: whether MergedLoraLinear supports the call.
bool SupportsMergedLora(const LinearArgs& args);
void MergedLoraLinear(const LinearArgs& args, CudaStream& stream);

// Two functions of linear/quantized.cu for quantised weights. RunByteGemv: GEMM of few rows;
// returns false, with nothing enqueued, if it does not support the call. Dequantize: writes
// channels [begin, end) to `to`, [end - begin, k] bf16.
bool RunByteGemv(const LinearArgs& args, CudaStream& stream);
void Dequantize(const WeightView& w, int64_t begin, int64_t end, void* to, CudaStream& stream);

// Writes channels [begin, end) of W plus the LoRA terms of an adapter to `to`, [end - begin, k] of
// the factors' dtype; in linear/lora_merge.cu. `begin` is a multiple of kMergedLoraRows.
// CanMergeLora: whether MergeLoraRows supports the weight.
constexpr int kMergedLoraRows = 4;
void MergeLoraRows(const WeightView& w, const LoraWeight& lora, int32_t adapter, int64_t begin,
                   int64_t end, void* to, CudaStream& stream);
bool CanMergeLora(const WeightView& w, const LoraWeight& lora);

}  // namespace quintet::cuda
