// Split-K GEMM for tens to a few hundred rows on Hopper: which calls it takes, the choice of the
// tiling, and the launch with bf16 and f16 weights. The kernel is in linear/split_k.cuh.
#include "kernels/linear/split_k.cuh"

#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/linear/two_cta_gated.cuh"

namespace quintet::cuda {
namespace {

// A GEMM with at most this number of rows may use the split-K kernel whatever the size of its
// weights. With more rows, only some sizes may (Fits).
constexpr int64_t kRowsOfAny = 64;
constexpr int64_t kRowsOfBytes = 128;  // the same for 8-bit weights
constexpr int64_t kMostRows = 256;

int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Whether vector instructions can load and store the rows of a matrix in groups of four consecutive
// elements: `data`, where the first row begins, and the row stride (`stride`, in elements) must be
// aligned to four elements.
bool InFours(const void* data, int64_t stride, DType dtype) {
  const auto bytes = static_cast<uintptr_t>(4 * DTypeBytes(dtype));
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 && stride % 4 == 0;
}
bool InFours(const Tensor& t) { return !t.defined() || InFours(t.data, t.stride[0], t.dtype); }

void SetKvOutput(const KvOutput& kv, CudaStream& stream, SplitKArgs* a) {
  const KvCache& cache = *kv.cache;
  a->cache = cache.data;
  a->cache_is_e4m3 = cache.dtype == DType::kF8;
  a->slots = stream.DevicePtr(kv.slots.data());
  a->inner = static_cast<int>(cache.heads * cache.head_dim);
  a->head_dim = static_cast<int>(cache.head_dim);
  a->page_size = static_cast<int>(cache.page_size);
  a->page_elements = cache.page_elements();
  a->layer_offset = cache.ChunkOffset(kv.layer, false, 0);
  a->head_stride = cache.page_size * cache.head_dim;
}

void SetSplitNorms(const LinearArgs& args, SplitKArgs* a) {
  a->squares = args.x_squares.as<float>();
  a->square_parts = static_cast<int>(args.x_squares.dim[1]);
  a->inverse_k = 1.0f / static_cast<float>(args.w->k());
  a->eps = args.norm_eps;
  const NormOutput& next = args.next_norm;
  a->next_gamma = next.gamma.as<float>();
  a->next_scaled = next.scaled.data;
  a->next_squares = next.squares.as<float>();
  a->next_stride = next.scaled.stride[0];
}

void SetLora(const LinearArgs& args, CudaStream& stream, SplitKLora* lora) {
  const LoraWeight& weight = *args.lora.weight;
  lora->table = weight.table;
  lora->stride = weight.stride;
  lora->adapters = stream.DevicePtr(args.lora.adapters.data());
  lora->x = args.x.data;
  lora->x_stride = args.x.stride[0];
  lora->t = static_cast<LoraWord*>(args.lora.words.data);
  lora->counter = weight.counter;
  lora->parts = static_cast<int>(weight.parts);
  lora->max_rank = static_cast<int>(weight.max_rank);
  lora->slices = CeilDiv(weight.k, kLoraSlice);
  const int blocks = static_cast<int>(weight.max_rank / kLoraRankMultiple);
  lora->of_block = Divisor::Of(lora->slices);
  lora->of_part = Divisor::Of(lora->slices * blocks);
  lora->of_row = Divisor::Of(lora->slices * blocks * lora->parts);
  lora->of_column = Divisor::Of(static_cast<int>(weight.part_columns));
  lora->blocks = SplitKOneLoraBlocks(args);
}

// Whether a GEMM of 65 to 128 rows with large, ungated weights uses split-K with two CTAs per tile
// of 64 channels by 64 rows. It does if the CTAs of all tiles occupy between 3/4 and all of the
// SMs.
bool InTwo(const WeightView& w, int64_t rows, const CudaStream& stream) {
  const int tiles = 2 * CeilDiv(w.n(), 64), units = stream.num_sms();
  return rows > kRowsOfAny && rows <= 2 * kRowsOfAny && SplitKIsLarge(w) && !w.gated() &&
         2 * tiles <= units && 2 * tiles * 4 >= units * 3;
}

// Whether the split-K kernel can compute a GEMM of `rows` rows. Returns false, too, if there are so
// many rows that another kernel is faster.
bool SupportsRows(const WeightView& w, int64_t rows, const CudaStream& stream) {
  if (!stream.hopper() || w.type() == WeightType::kF32) return false;
  if (w.k() % (IsQuantized(w.type()) ? kByteGroup : 8) != 0) return false;
  if (QuantizesInputs(w.type()) && rows >= kMinQuantizedInputRows) return false;
  if (rows <= (IsQuantized(w.type()) ? kRowsOfBytes : kRowsOfAny)) return true;
  return (rows <= kMostRows && rows * w.n() * w.k() <= kSplitKMaxMultiplyAdds) ||
         InTwo(w, rows, stream);
}

// Whether the split-K kernel is used: it must be faster than the gemv kernel (linear/gemv.cu) and
// than cuBLASLt, whose kernels do not use programmatic dependent launch. With 8-bit weights it is
// used from one row on.
// Up to 64 rows it is never slower than cuBLASLt (1.0 to 2.2 times as fast for 9 to 64 rows on the
// shapes of linear/NOTES.md). With more rows it is faster only if the GEMM is so small that the
// latency of kernels, not the multiplication, takes most of the time.
// Large weights use it from 8 rows on, others from 9, because of these times of a decoder step.
// Flan-T5-XL (large weights): with 8 rows 1,199 us with this kernel and 1,340 us with the gemv
// kernel, with 6 rows 1,210 us and 1,170 us. T5-base: with 8 rows 285 us and 280 us.
bool Fits(const WeightView& w, int64_t rows, const CudaStream& stream) {
  const int64_t least = IsQuantized(w.type()) ? 1 : SplitKIsLarge(w) ? 8 : 9;
  return rows >= least && SupportsRows(w, rows, stream);
}

// Whether the split-K kernel supports this call: no scattered output, no biases of rows, no
// norm_gamma (a complete RMSNorm of x; this kernel supports only the split RMSNorm), x already of
// the weight type (bf16 if that has 8 bits), and everything aligned for accesses of four elements.
bool Takes(const LinearArgs& args) {
  const WeightView& w = *args.w;
  if (args.scatter.base != nullptr || args.norm_gamma.defined()) return false;
  if (args.row_bias.defined()) return false;
  const DType type = IsQuantized(w.type()) ? DType::kBF16 : WeightDType(w.type());
  if (args.x.dtype != type || !Vectorizable(args.x)) return false;
  if (reinterpret_cast<uintptr_t>(w.panels()) % 16 != 0) return false;
  if (args.y.dim[1] % 4 != 0 || !InFours(args.y) || !InFours(args.residual)) return false;
  if (args.bias.defined() && !InFours(args.bias.data, 0, args.bias.dtype)) return false;
  const KvCache* cache = args.kv.cache;
  if (cache != nullptr && !InFours(cache->data, cache->head_dim, cache->dtype)) return false;
  return InFours(args.next_norm.gamma.data, 0, DType::kF32) && InFours(args.next_norm.scaled);
}

// Chooses how a split-K GEMM is tiled, by rules that were fitted to measurements of all tilings on
// the shapes of linear/NOTES.md. Where the rules do not choose the fastest tiling, the chosen one
// takes 5 % longer than the fastest on average.
SplitKPlan PlanOf(const WeightView& w, int64_t rows, const CudaStream& stream) {
  const bool bytes = IsQuantized(w.type());
  const int units = stream.num_sms(), steps = CeilDiv(w.k(), kSplitKDepth);
  const int channel_tiles = CeilDiv(w.n(), 64);
  const bool narrow = w.k() < 2048 && channel_tiles * CeilDiv(rows, 32) <= units * 11 / 10;
  SplitKPlan plan{};
  plan.rows = rows <= 16 ? 16 : rows <= 32 || narrow ? 32 : 64;
  const int tiles = channel_tiles * CeilDiv(rows, plan.rows);
  const bool in_two = InTwo(w, rows, stream);
  // The number of CTAs is limited, so that the CTAs of this kernel and of the next one can be
  // resident together.
  const int of_few_rows = !bytes ? units * 3 / 4 : w.k() >= 4096 ? units * 3 / 2 : units;
  const int wanted_blocks = rows <= 32 ? of_few_rows : in_two ? units : units / 2;
  // As many splits as wanted_blocks allows, but each CTA must have at least three steps of
  // kSplitKDepth values of k.
  plan.splits = std::clamp(wanted_blocks / tiles, 1, std::clamp(steps / 3, 1, kMaxSplits));
  // share: steps of the pipeline. A step has twice as many values of 8-bit weights.
  const int blocks = tiles * plan.splits;
  const int share = CeilDiv(bytes ? CeilDiv(steps, 2) : steps, plan.splits);
  const bool deep = 2 * blocks <= units || (blocks <= units && share >= 24);
  const int ring_kib = in_two                               ? 128
                       : deep                               ? 192
                       : bytes && blocks <= units           ? 140
                       : blocks <= units || plan.rows == 64 ? 104
                                                            : 72;
  const int stage_bytes = (64 + plan.rows * (bytes ? 2 : 1)) * 128;
  plan.stages = std::min({share, (ring_kib << 10) / stage_bytes, kSplitKMaxStages});
  return plan;
}

}  // namespace

bool SplitKIsLarge(const WeightView& w) {
  constexpr int64_t kLeast = 2048;
  return w.n() >= kLeast && w.k() >= kLeast;
}

SplitKArgs SplitKArgsOf(const LinearArgs& args, CudaStream& stream) {
  const WeightView& w = *args.w;
  SplitKArgs a{};
  if (args.bias.dtype == DType::kF32) {
    a.bias = args.bias.as<float>();
  } else {
    a.out_bias = args.bias.data;
  }
  a.residual = args.residual.data;
  a.y = args.y.data;
  a.residual_stride = args.residual.stride[0];
  a.y_stride = args.y.stride[0];
  a.rows = static_cast<int>(args.x.dim[0]);
  a.columns = static_cast<int>(w.gated() ? w.n() / 2 : w.n());
  a.k = static_cast<int>(w.k());
  a.up_offset = w.gated() ? a.columns : 0;
  a.alpha = args.alpha;
  a.activation = args.activation;
  a.y_f32 = args.y.dtype == DType::kF32;
  a.inner = a.columns;
  if (IsQuantized(w.type())) a.w_scales = static_cast<const float*>(w.channels());
  if (args.kv.cache != nullptr) SetKvOutput(args.kv, stream, &a);
  SetSplitNorms(args, &a);
  if (args.lora.weight != nullptr) SetLora(args, stream, &a.lora);
  return a;
}

namespace {

bool OnlyAdds(const LinearArgs& args) {
  return args.residual.defined() && args.y.dtype == DType::kF32 && !args.bias.defined() &&
         !args.w->gated() && args.activation == Activation::kNone && args.kv.cache == nullptr;
}

template <typename T, bool kHalves, SplitKKind kKind>
void LaunchKind(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const auto launch = plan.rows == 16   ? LaunchSplitKTile<T, SplitKTile<16, kHalves, kKind>>
                      : plan.rows == 32 ? LaunchSplitKTile<T, SplitKTile<32, kHalves, kKind>>
                                        : LaunchSplitKTile<T, SplitKTile<64, kHalves, kKind>>;
  launch(args, plan, stream);
}

template <typename T, bool kHalves>
void LaunchTyped(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  if (OnlyAdds(args) && InTwo(*args.w, args.x.dim[0], stream)) {
    LaunchSplitKTile<T, SplitKTile<64, kHalves, SplitKKind::kAdds>>(args, plan, stream);
  } else if (SplitKIsLarge(*args.w)) {
    LaunchKind<T, kHalves, SplitKKind::kLarge>(args, plan, stream);
  } else {
    LaunchKind<T, kHalves, SplitKKind::kSmall>(args, plan, stream);
  }
}

}  // namespace

void LaunchSplitK(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const bool halves = args.x_squares.defined() || args.next_norm.gamma.defined();
  const auto launch = args.w->type() == WeightType::kF16 ? LaunchTyped<__half, false>
                      : halves                           ? LaunchTyped<__nv_bfloat16, true>
                                                         : LaunchTyped<__nv_bfloat16, false>;
  launch(args, plan, stream);
}

bool RunSplitK(const LinearArgs& args, CudaStream& stream) {
  const WeightView& w = *args.w;
  const int64_t rows = args.x.dim[0];
  if (!Takes(args)) return false;
  if (args.lora.weight != nullptr) {
    LaunchSplitKLora(args, PlanOf(w, rows, stream), stream);
    return true;
  }
  if (TwoCtaGatedFits(w, rows, stream) && !args.residual.defined()) {
    LaunchTwoCtaGated(args, stream);
    return true;
  }
  if (!Fits(w, rows, stream)) return false;
  const auto launch = IsQuantized(w.type()) ? LaunchSplitKBytes : LaunchSplitK;
  launch(args, PlanOf(w, rows, stream), stream);
  return true;
}

bool SplitKSupportsLora(const LinearArgs& args, const CudaStream& stream) {
  const WeightView& w = *args.w;
  const int64_t rows = args.x.dim[0];
  const bool norms = args.x_squares.defined() || args.next_norm.gamma.defined();
  if (rows == 0 || (rows <= kMostFusedNormRows && norms)) return false;
  return SupportsRows(w, rows, stream) && Takes(args) &&
         SplitKLoraFits(args, PlanOf(w, rows, stream), stream);
}

bool SplitKSupportsKvStore(const WeightView& w, int64_t rows, const CudaStream& stream) {
  return Fits(w, rows, stream);
}

// A split RMSNorm of the input (the previous GEMM has computed its first half) is supported only
// for inputs of bf16: the input is then y * gamma of the previous GEMM, which could overflow f16,
// because it is not yet divided by the root mean square of y. With more than 64 rows, rows * n * k
// must be at most kMaxMultiplyAdds, which is smaller than the maximum of other GEMMs (Fits):
// between these two limits, a separate RMSNorm op and a GEMM without the norm are faster.
bool SplitKSupportsSplitNormInput(const WeightView& w, int64_t rows, const CudaStream& stream) {
  constexpr int64_t kMaxMultiplyAdds = int64_t{3} << 27;
  if (!Fits(w, rows, stream) || w.type() == WeightType::kF16) return false;
  return rows <= kRowsOfAny || rows * w.n() * w.k() <= kMaxMultiplyAdds;
}

int64_t SplitKSplitNormParts(const WeightView& w, int64_t rows, const CudaStream& stream) {
  constexpr int64_t kChannels = SplitKTile<16, true, SplitKKind::kSmall>::kChannels;
  const bool does = SplitKSupportsSplitNormInput(w, rows, stream) && !w.gated();
  return does && w.n() % kChannels == 0 ? w.n() / kChannels : 0;
}

}  // namespace quintet::cuda
