// Matrix products with weights prepared once at load: y = epilogue(alpha * x W^T + bias).
//
// CPU: x and y are f32. By the type of the weights:
//   f32:   each element of y is summed over k in ascending order, by fused multiply-adds into one
//          accumulator, so a row's result is bit-identical alone and in any batch
//   int8:  each row of x is quantised on the fly (symmetric, one scale a row); sums are exact, i32
//   bf16:  only on CPUs with bf16 dot products; x is rounded to bf16, sums are f32 in a fixed order
//
// GPU:
//   f32:       x and y f32; the sums of the CPU, in its order
//   bf16, f16: x of the weights' type, or f32, which is rounded to it first; y of that type or f32;
//              sums f32, in an order that depends on the shape
//   int8, fp8: as bf16 weights that hold each value times its channel's scale
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/buffer.h"
#include "kernels/kv_cache.h"
#include "kernels/stream.h"
#include "kernels/tensor.h"

namespace quintet {

enum class Activation : uint8_t { kNone, kRelu, kGeluTanh, kGeluErf, kSilu, kTanh };

// kI8 and kF8 (e4m3) have one scale for each output channel.
enum class WeightType : uint8_t { kF32, kBF16, kF16, kI8, kF8 };
// Of the values in memory and in files.
DType WeightDType(WeightType type);
const char* WeightTypeName(WeightType type);  // "f32", "bf16", "f16", "int8", "fp8"
constexpr bool IsQuantized(WeightType type) {
  return type == WeightType::kI8 || type == WeightType::kF8;
}
constexpr bool IsQuantized(DType type) { return type == DType::kI8 || type == DType::kF8; }
// A GPU takes all. A CPU (null device) takes kF32 and kI8, and kBF16 where it has the instructions.
bool WeightTypeSupported(WeightType type, const Device* device = nullptr);
// The type of activations that goes with such weights: on a GPU theirs, or bf16 where they are
// quantised, on the CPU f32.
DType ActivationType(WeightType type, const Device* device);

// A matrix W [n, k] in the layout the products want. Immutable once packed; reads are thread safe.
class LinearWeight {
 public:
  // `gated`: W holds two halves of n/2 rows, gate then up, interleaved in memory so that one
  // product yields both halves of a gated activation side by side. On a device, which outlives the
  // calls of Pack, the layout is W's own.
  static absl::StatusOr<LinearWeight> Allocate(int64_t n, int64_t k, WeightType type, bool gated,
                                               Device* device = nullptr);
  // The same without memory: bytes() is what Allocate would take, and sizes of scratch can be asked
  // for. Only for sizing.
  static absl::StatusOr<LinearWeight> Describe(int64_t n, int64_t k, WeightType type, bool gated,
                                               Device* device = nullptr);
  // A view of values [n, k] that already lie on a device and are not quantised.
  static LinearWeight OnDevice(const void* values, int64_t n, int64_t k, WeightType type,
                               bool gated, Device* device);
  LinearWeight() = default;

  // Fills output channels [row, row + w.dim[0]) from w [rows, k] f32|bf16|f16, any strides (a
  // transposed view serves GPT-2's [in, out] files). Quantises as QuantizeRows does. Calls on
  // disjoint ranges may run in parallel when each range starts at a multiple of kPackRows and ends
  // at one or at the end of its half (gated) or matrix. Rows count in file order: gate rows are [0,
  // n/2), up rows [n/2, n).
  static constexpr int64_t kPackRows = 64;
  void Pack(int64_t row, const Tensor& w);
  // The same from values already quantised: w [rows, k] of WeightDType(type()), scales [rows] f32.
  void PackQuantized(int64_t row, const Tensor& w, const Tensor& scales);
  // The inverse, which tests use: rows dequantised, to w [rows, k] f32. CPU only.
  void Unpack(int64_t row, const Tensor& w) const;

  bool defined() const { return n_ > 0; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  WeightType type() const { return type_; }
  bool gated() const { return gated_; }
  int64_t bytes() const { return panel_bytes_ + channel_bytes_; }

  // The packed panels and per-channel data: their layout is described in linear_cpu.h; on a device
  // values [n, k] row-major, and scales [n] f32 of quantised ones.
  const void* panels() const { return panels_.data(); }
  const void* channels() const { return channels_.data(); }

 private:
  void WriteRows(int64_t row, const Tensor& w);
  void WriteQuantized(int64_t row, const Tensor& w, const Tensor& scales);

  int64_t n_ = 0, k_ = 0;
  WeightType type_ = WeightType::kF32;
  bool gated_ = false;
  Device* device_ = nullptr;
  int64_t panel_bytes_ = 0, channel_bytes_ = 0;
  Buffer panels_;
  Buffer channels_;  // of quantised weights; kI8 on a CPU: scales and sums of each channel
};

// The quantisation that Pack does, for files: q [rows, k] i8 or f8 dense and scales [rows] f32 of w
// [rows, k] f32|bf16|f16. Symmetric, a channel's largest magnitude becomes 127 or 448.
void QuantizeRows(const Tensor& w, const Tensor& q, const Tensor& scales);

// Output that is no row-major matrix: element (r, c) is written to base[row_offset[r] +
// chunk_offset[c / chunk] + c % chunk]. So one product writes the cross-attention keys and values
// of all layers into the cache.
struct ScatterOutput {
  void* base = nullptr;
  DType dtype = DType::kF32;
  const int64_t* row_offset = nullptr;    // [rows], in elements
  const int64_t* chunk_offset = nullptr;  // [n / chunk], in elements
  int64_t chunk = 0;
};

// For a decoder's product of queries, keys and values, y [rows, 3 I]: the keys and values go to
// their slots in the cache instead of to y (as StoreKv does).
struct KvOutput {
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  absl::Span<const int32_t> slots;  // [rows]; -1: the row is not kept
};

// RMSNorm between two products without a pass of its own. Since norm(y) W^T = (y gamma) W^T /
// sqrt(mean(y^2) + eps), the first product writes y * gamma and sums of y^2, and the second scales
// its rows (LinearArgs::x_squares).
struct NormOutput {
  Tensor gamma;    // [n] f32
  Tensor scaled;   // [rows, n] of w's type: y * gamma
  Tensor squares;  // [rows, LinearNormParts] f32, dense: sums of y^2 over equal shares of n
};

struct LinearArgs {
  Tensor x;  // [rows, k], unit last stride
  // Only where LinearTakesNorm: x [rows, k] f32 is normalised first, by RmsNorm, or by LayerNorm
  // where beta is defined (norm.h).
  Tensor norm_gamma, norm_beta;  // [k] f32, or undefined
  float norm_eps = 0.0f;
  // Only where LinearTakesSquares: x and these are the `scaled` and `squares` of a NormOutput, and
  // x W^T is scaled by 1 / sqrt(sum of the row's squares / k + norm_eps).
  Tensor x_squares;                 // [rows, parts] f32, dense, or undefined
  const LinearWeight* w = nullptr;  // [n, k]
  Tensor bias;                      // [n] f32 (GPU: or of y's type), or undefined
  float alpha = 1.0f;               // scales x W^T before the bias
  // After the bias. With a gated weight: y = activation(gate) * up, n/2 columns; else y =
  // activation(.).
  Activation activation = Activation::kNone;
  Tensor residual;  // [rows, n] of y's type, added last, or undefined; may alias y
  // [rows, n] or [rows, n/2], unit last stride; must not alias x. Undefined with scatter. On a GPU,
  // where rows are further apart, up to seven values behind each may be written over.
  Tensor y;
  ScatterOutput scatter;  // used when base is set; no residual then
  KvOutput kv;            // used when cache is set: only where LinearStoresKv
  NormOutput next_norm;   // when gamma is defined: only where LinearNormParts; x of w's type, y f32
  Tensor scratch;  // LinearScratchBytes(...) bytes as [bytes] i8, or undefined when that is 0
};
// Checks shapes (QT_CHECK), counts one product on the stream, then runs it on the stream's threads.
// rows 0 is allowed.
void Linear(const LinearArgs& args, Stream& stream);
// Whether a product of so many rows can normalise x itself: on a GPU, for few rows.
bool LinearTakesNorm(const LinearWeight& w, int64_t rows, const Stream& stream);
// Whether a product of so many rows writes keys and values to their slots: on a GPU, for few rows,
// on Hopper for up to 256.
bool LinearStoresKv(const LinearWeight& w, int64_t rows, const Stream& stream);
// Into how many sums, at most n / 16, a product of so many rows divides each row of
// NormOutput::squares; 0: it cannot write a NormOutput. Not 0 on a GPU with bf16 weights for few
// rows (on Hopper up to 64, and more for small products), never for more than kMostNormRows. In
// such calls, and in those with x_squares, rows of all tensors must begin on 16-byte boundaries.
constexpr int64_t kMostNormRows = 512;
int64_t LinearNormParts(const LinearWeight& w, int64_t rows, const Stream& stream);
// Whether a product of so many rows takes x_squares; of few rows: where k > 1024.
bool LinearTakesSquares(const LinearWeight& w, int64_t rows, const Stream& stream);
// Grows with rows; on the CPU up to about a quarter of a core's second-level cache.
int64_t LinearScratchBytes(const LinearWeight& w, int64_t rows, const Stream& stream);

}  // namespace quintet
