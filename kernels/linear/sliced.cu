// GEMM with weights that are computed for each call: quantised weights, which are widened, and
// weights to which the LoRA terms of an adapter are added. A kernel writes a slice of the channels
// to scratch memory, and the GEMM of linear.cu multiplies x by that slice, which is still in L2.
#include <algorithm>

#include "kernels/base/carver.h"
#include "kernels/cuda_ops.h"
#include "kernels/linear/gemm.cuh"

namespace quintet::cuda {
namespace {

constexpr int64_t kSliceBytes = int64_t{32} << 20;  // stays in L2

// Number of channels in a slice. If there are several slices, it is a multiple of 256, so that the
// columns of y at which a slice begins are aligned. A gated weight is a single slice, because its
// gate rows and up rows must stay together.
int64_t SliceChannels(const WeightView& w) {
  constexpr int64_t kMultiple = 256;
  const int64_t most = std::max(kMultiple, kSliceBytes / (2 * w.k()) / kMultiple * kMultiple);
  return w.gated() ? w.n() : std::min(w.n(), most);
}

WeightView SliceAt(const WeightView& w, int64_t channels, const void* values) {
  const WeightType type = w.type() == WeightType::kF16 ? WeightType::kF16 : WeightType::kBF16;
  return WeightView(values, channels, w.k(), type, w.gated());
}

int64_t SliceBytes(const WeightView& w) { return SliceChannels(w) * w.k() * 2; }

struct SlicedScratch {
  void* slice;     // [SliceChannels, k] bf16 or f16
  Tensor product;  // scratch of the GEMM with the slice
  int64_t bytes;
};

SlicedScratch Carve(void* base, const WeightView& w, int64_t rows, const CudaStream& stream) {
  Carver carver(base);
  SlicedScratch s;
  s.slice = carver.Take(SliceBytes(w));
  const WeightView slice = SliceAt(w, SliceChannels(w), s.slice);
  s.product = carver.TakeTensor(DType::kI8, {cuda::LinearScratchBytes(slice, rows, stream)});
  s.bytes = carver.used_bytes();
  return s;
}

// Returns the arguments of the call restricted to channels [begin, end) of W. `slice` holds the
// values of these channels.
LinearArgs ChannelsOf(const LinearArgs& args, const WeightView& slice, int64_t begin, int64_t end) {
  LinearArgs part = args;
  part.w = &slice;
  part.lora = {};
  if (end - begin == args.w->n()) return part;
  if (args.bias.defined()) part.bias = args.bias.Rows(begin, end);
  if (args.row_bias.defined()) part.row_bias = args.row_bias.Columns(begin, end);
  if (args.residual.defined()) part.residual = args.residual.Columns(begin, end);
  if (args.scatter.base != nullptr) {
    part.scatter.chunk_offset += begin / args.scatter.chunk;
  } else {
    part.y = args.y.Columns(begin, end);
  }
  return part;
}

// Calls write(begin, end) for each slice of channels; `write` must store the values of these
// channels in `slice`. Then multiplies x by these values.
template <typename Write>
void ForEachSlice(const LinearArgs& args, void* slice, const Tensor& product, CudaStream& stream,
                  Write write) {
  const WeightView& w = *args.w;
  int64_t channels = SliceChannels(w);
  if (args.scatter.base != nullptr && channels < w.n()) {
    channels -= channels % args.scatter.chunk;
    QT_CHECK_GT(channels, 0);
  }
  for (int64_t begin = 0; begin < w.n(); begin += channels) {
    const int64_t end = std::min(begin + channels, w.n());
    write(begin, end);
    const WeightView weight = SliceAt(w, end - begin, slice);
    LinearArgs part = ChannelsOf(args, weight, begin, end);
    part.scratch = product;
    WideLinear(part, stream);
  }
}

}  // namespace

int64_t QuantizedScratchBytes(const WeightView& w, int64_t rows, const CudaStream& stream) {
  return std::max(Carve(nullptr, w, rows, stream).bytes, ByteGemmScratchBytes(w, rows));
}

void QuantizedLinear(const LinearArgs& args, CudaStream& stream) {
  if (ByteGemmTakes(args, stream)) return ByteGemm(args, stream);
  QT_CHECK(!args.norm_gamma.defined());
  if (RunByteGemv(args, stream)) return;
  const SlicedScratch scratch = Carve(args.scratch.data, *args.w, args.x.dim[0], stream);
  QT_CHECK_GE(args.scratch.elements(), scratch.bytes);
  ForEachSlice(args, scratch.slice, scratch.product, stream, [&](int64_t begin, int64_t end) {
    Dequantize(*args.w, begin, end, scratch.slice, stream);
  });
}

bool SupportsMergedLora(const LinearArgs& args) {
  const bool norms =
      args.norm_gamma.defined() || args.x_squares.defined() || args.next_norm.gamma.defined();
  const bool scattered = args.scatter.base != nullptr;
  return args.x.dim[0] >= kMinMergedLoraRows && !norms && args.kv.cache == nullptr &&
         (!scattered || args.scatter.chunk % kMergedLoraRows == 0) &&
         CanMergeLora(*args.w, *args.lora.weight);
}

int64_t LoraCopyBytes(const WeightView& w, const CudaStream&) { return SliceBytes(w); }

void MergedLoraLinear(const LinearArgs& args, CudaStream& stream) {
  void* const slice = args.lora.copy.data;
  ForEachSlice(args, slice, args.scratch, stream, [&](int64_t begin, int64_t end) {
    MergeLoraRows(*args.w, *args.lora.weight, args.lora.adapter, begin, end, slice, stream);
  });
}

}  // namespace quintet::cuda
