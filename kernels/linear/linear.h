// GEMM with weights packed once at load: y = epilogue(alpha * x W^T + bias).
//
// CPU: x and y are f32. By weight type:
//   f32:   each element of y is one chain of fused multiply-adds over k in ascending order, so the
//          result of a row is bit-identical alone and in any batch
//   int8:  each row of x is quantised on the fly (symmetric, one scale per row); sums are exact
//          (i32)
//   bf16:  only on CPUs with bf16 dot products; x is rounded to bf16, sums are f32 in a fixed
//          order
//
// GPU:
//   f32:       x and y are f32; sums as on the CPU, in the same order
//   bf16, f16: x has the weight type, or is f32 and rounded to it first; y has that type or f32;
//              sums are f32, in an order that depends on the shape
//   int8, fp8: x, y and sums as for bf16; a weight is its stored value times the scale of its
//              channel
//   int8-w8a8, fp8-w8a8: as int8 and fp8, but from 33 rows on, each row of x is quantised to int8
//              or e4m3 on the fly (symmetric, one scale per row), and tensor cores multiply the
//              8-bit values; sums are i32 (exact) for int8, f32 for e4m3. Hopper only.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/tensor.h"
#include "kernels/ops/kv_cache.h"

namespace quintet {

class Device;  // kernels/runtime/device.h
class Stream;  // kernels/runtime/stream.h

enum class Activation : uint8_t { kNone, kRelu, kGeluTanh, kGeluErf, kSilu, kTanh };

// kI8 and kF8 (e4m3) have one scale per output channel. kI8W8A8 and kF8W8A8 have the same weights.
enum class WeightType : uint8_t { kF32, kBF16, kF16, kI8, kF8, kI8W8A8, kF8W8A8 };
// The dtype of the weight values in memory and in files.
DType WeightDType(WeightType type);
// "f32", "bf16", "f16", "int8", "fp8", "int8-w8a8", "fp8-w8a8"
const char* WeightTypeName(WeightType type);
// Whether GEMMs on a GPU quantise x, too.
constexpr bool QuantizesInputs(WeightType type) {
  return type == WeightType::kI8W8A8 || type == WeightType::kF8W8A8;
}
constexpr bool IsQuantized(WeightType type) {
  return type == WeightType::kI8 || type == WeightType::kF8 || QuantizesInputs(type);
}
constexpr bool IsQuantized(DType type) { return type == DType::kI8 || type == DType::kF8; }
// Whether the device supports this weight type. A Hopper GPU supports all types, another GPU those
// that do not quantise x. A CPU (null device) supports kF32 and kI8, and kBF16 if it has the
// instructions.
bool WeightTypeSupported(WeightType type, const Device* device = nullptr);
// The dtype of activations for weights of this type. GPU: the dtype of the weights, or bf16 for
// quantised weights. CPU: f32.
DType ActivationType(WeightType type, const Device* device);

// A packed weight matrix W [n, k] as kernels read it: a view, which owns no memory. Packed weights
// with their memory are LinearWeight objects (linear/weight.h).
class WeightView {
 public:
  WeightView() = default;
  // Unquantised values [n, k], row-major, in device memory.
  WeightView(const void* values, int64_t n, int64_t k, WeightType type, bool gated);

  bool defined() const { return n_ > 0; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  WeightType type() const { return type_; }
  bool gated() const { return gated_; }
  int64_t bytes() const { return panel_bytes_ + channel_bytes_; }

  // The packed values. CPU: panels, as described in linear_cpu.h. GPU: [n, k] row-major; bytes of a
  // row are in the order of linear/byte_weights.cuh.
  const void* panels() const { return panels_; }
  // The data of each output channel of a quantised W. CPU: scales and sums of weights, as described
  // in linear_cpu.h. GPU: scales [n] f32.
  const void* channels() const { return channels_; }

 protected:
  int64_t n_ = 0, k_ = 0;
  WeightType type_ = WeightType::kF32;
  bool gated_ = false;
  int64_t panel_bytes_ = 0, channel_bytes_ = 0;
  const void* panels_ = nullptr;
  const void* channels_ = nullptr;
};

// Scattered output: each row of y is divided into chunks of `chunk` columns, which are stored at
// separate places. Element (r, c) is written to base[row_offset[r] + chunk_offset[c / chunk] + c %
// chunk]. With it, one GEMM writes the cross-attention K and V of all layers into the cache.
struct ScatterOutput {
  void* base = nullptr;
  // f32 on a CPU; on a GPU f32, or the type of y that a GEMM with this weight can have, or kF8
  // unless the weights are f32: y is then rounded to its 16-bit type and to kF8 as by StoreKv.
  DType dtype = DType::kF32;
  const int64_t* row_offset = nullptr;    // [rows], in elements
  const int64_t* chunk_offset = nullptr;  // [n / chunk], in elements
  int64_t chunk = 0;
};

// KV-cache destination of a QKV GEMM with y [rows, 3 * heads * head_dim]: K and V are written to
// the slots of their rows (as StoreKv does) instead of to y; Q is written to y. The cache accepts
// the dtype of y (KvCache::Accepts).
struct KvOutput {
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  std::span<const int32_t> slots;  // [rows]; -1: K and V of the row are not stored
};

// Split RMSNorm: an RMSNorm between two GEMMs without a pass of its own. Since norm(y) W^T = (y
// gamma) W^T / sqrt(mean(y^2) + eps), the epilogue of the first GEMM writes y * gamma and partial
// sums of y^2, and the epilogue of the second GEMM multiplies each row of its product by 1 /
// sqrt(mean(y^2) + eps) (LinearArgs::x_squares).
struct NormOutput {
  Tensor gamma;    // [n] f32
  Tensor scaled;   // [rows, n] of w's type: y * gamma
  Tensor squares;  // [rows, SplitNormParts] f32, dense: sums of y^2 over equal parts of n
};

struct LoraWeight;  // linear/lora.h

// The LoRA terms that a GEMM itself adds to x W^T (linear/lora.h).
struct LoraInput {
  const LoraWeight* weight = nullptr;
  // [rows] the adapter of each row, as in AddLoraArgs. If this array is empty, all rows have
  // `adapter`, which must not be -1, and its terms are added to a copy of W.
  std::span<const int32_t> adapters;
  int32_t adapter = -1;
  // The caller promises that all values of `adapters` other than -1 are equal. The host values
  // alone do not show this, because a CUDA graph with this call may run with other values.
  bool one_adapter = false;
  // LoraWordBytes bytes as [bytes] i8; required if `adapters` is used without one_adapter. The
  // memory must be 0 before the first call that uses it, and only GEMMs with LoRA terms may write
  // it. The caller must hold the GPU's GridWaitRight (runtime/grid_wait_right.h).
  Tensor words;
  Tensor copy;  // without `adapters`: LoraCopyBytes bytes as [bytes] i8
};
constexpr int64_t kMaxLoraInputRows = 256;    // with an adapter for each row
constexpr int64_t kMinMergedLoraRows = 1024;  // with one adapter

struct LinearArgs {
  Tensor x;  // [rows, k], unit last stride
  // Fused norm of x [rows, k] f32 before the GEMM (norm.h); allowed only if SupportsFusedNorm. It
  // is a LayerNorm if norm_beta is set, and an RMSNorm if only norm_gamma is set.
  Tensor norm_gamma, norm_beta;  // [k] f32, or undefined
  float norm_eps = 0.0f;
  // Split RMSNorm (NormOutput) of x; allowed only if SupportsSplitNormInput. x and x_squares are
  // the tensors NormOutput::scaled and NormOutput::squares that the previous GEMM wrote. Each row
  // of x W^T is multiplied by 1 / sqrt(sum of its x_squares / k + norm_eps).
  Tensor x_squares;               // [rows, parts] f32, dense, or undefined
  const WeightView* w = nullptr;  // [n, k]
  Tensor bias;                    // [n] f32 (GPU: or of y's type), or undefined
  float alpha = 1.0f;             // scales x W^T before the bias
  // n biases for each row, added like `bias` before the activation; or undefined. Must be undefined
  // if norm_gamma, x_squares, next_norm, scatter or kv is set. On a GPU the call overwrites it.
  Tensor row_bias;  // [rows, n] f32, or on a GPU of y's dtype
  // LoRA terms, added to x W^T before alpha, the split norm of x and the bias; allowed only if
  // SupportsLora. Calls with the same LoraWeight must not run concurrently.
  LoraInput lora;  // used if lora.weight is set
  // Applied after the bias. With a gated weight it is applied to the gate half only, and y =
  // activation(gate) * up has n/2 columns.
  Activation activation = Activation::kNone;
  Tensor residual;  // [rows, n] of y's type, added last, or undefined; may alias y
  // [rows, n], or [rows, n/2] if gated; unit last stride; must not alias x. Left undefined
  // (Tensor::defined() is false) if `scatter` is used. On a GPU, if the row stride is larger than a
  // row, up to seven values behind each row may be overwritten.
  Tensor y;
  ScatterOutput scatter;  // used if base is set; no residual then
  KvOutput kv;            // used if cache is set; only if SupportsKvStore
  // Split RMSNorm of y, if next_norm.gamma is set: this GEMM writes next_norm.scaled and
  // next_norm.squares for the next GEMM. Allowed only if SplitNormParts > 0. x must then have the
  // dtype of w, and y must be f32.
  NormOutput next_norm;
  Tensor scratch;  // LinearScratchBytes(...) bytes as [bytes] i8, or undefined when that is 0
};
// Checks the shapes (QT_CHECK), increments the GEMM counter of the stream, and runs the GEMM on the
// threads or the device of the stream. Zero rows are allowed.
void Linear(const LinearArgs& args, Stream& stream);
// Whether the GEMM of these arguments, whose x is f32, can normalise x itself
// (LinearArgs::norm_gamma). It can do so only on a GPU. bf16 or f16 weights: for up to
// kMostFusedNormRows rows, if k is at most 2048 and a multiple of 32. Weights whose type quantises
// x (QuantizesInputs): if this GEMM quantises x, has neither a row_bias nor a KvOutput, and the
// rows of y are aligned to 16 bytes (f32: 8 bytes).
constexpr int64_t kMostFusedNormRows = 8;
bool SupportsFusedNorm(const LinearArgs& args, const Stream& stream);
// Whether a GEMM of `rows` rows can store K and V to the cache in its epilogue (LinearArgs::kv): on
// a GPU with bf16 or f16 weights, for up to eight rows if k is a multiple of 32; on Hopper also for
// up to 64 rows, or up to 256 for small weights, if k is a multiple of 8. With quantised weights on
// Hopper for up to 128 rows, if k is a multiple of 64 and x is not quantised.
bool SupportsKvStore(const WeightView& w, int64_t rows, const Stream& stream);
// Whether the GEMM of these arguments can add LoRA terms itself (LinearArgs::lora). Otherwise the
// caller adds the terms with AddLora.
// With LoraInput::adapters, it can do so on Hopper with bf16 or f16 weights, for at most
// kMaxLoraInputRows rows, if the ranks are at most 64, and LoraInput::words is defined or
// one_adapter is set. Up to kMostFusedNormRows rows there must be neither x_squares nor next_norm.
// With LoraInput::adapter, it can do so on a GPU from kMinMergedLoraRows rows on, unless the
// weights are f32 or the call has a norm or a KvOutput.
bool SupportsLora(const LinearArgs& args, const Stream& stream);
// Maximum number of rows of a GEMM that writes a NormOutput (the first half of a split RMSNorm).
constexpr int64_t kMostNormRows = 512;
// Returns the number of partial sums of squares per row that a GEMM of `rows` rows writes to
// NormOutput::squares: at most w.n() / 16. Returns 0 if this GEMM cannot write a NormOutput (the
// first half of a split RMSNorm, which its epilogue computes for the next GEMM). The number is
// nonzero only on a GPU, with few rows of x: up to 8 with bf16 weights, on Hopper up to 64 (more if
// rows * n * k is small, split_k.cu) also with quantised weights for which SupportsKvStore holds.
// In calls that write a NormOutput or have x_squares, rows of all tensors must begin on 16-byte
// boundaries.
int64_t SplitNormParts(const WeightView& w, int64_t rows, const Stream& stream);
// Whether a GEMM of `rows` rows can finish an RMSNorm of x that the previous GEMM began (split
// RMSNorm, LinearArgs::x_squares). With up to eight rows and bf16 weights it can do so only if k >
// 1024.
bool SupportsSplitNormInput(const WeightView& w, int64_t rows, const Stream& stream);
// Size of LinearArgs::scratch in bytes. It grows with `rows`, but on the CPU only up to about a
// quarter of the L2 cache of a core.
int64_t LinearScratchBytes(const WeightView& w, int64_t rows, const Stream& stream);

}  // namespace quintet
