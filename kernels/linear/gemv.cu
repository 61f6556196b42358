// GEMM for up to eight rows with bf16 or f16 weights (gemv): the kernel and its launch.
#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/linear/gemv.cuh"

namespace quintet::cuda {
namespace {

// Largest k for which 8 warps with 4 steps of k in registers (GemvShape) hold a whole row of x. For
// a larger k, a CTA has more warps, or each warp holds more steps.
constexpr int64_t kDeep = 1024;
// Largest k of a fused norm: a CTA holds whole rows of x in registers while it normalises them.
constexpr int64_t kMostNormK = 2 * kDeep;
// Number of CTAs of this kernel that the grid size assumes to be resident on an SM at once. CTAs of
// another kernel may share the SM.
constexpr int kBlocksPerUnit = 2;

// Gemv kernel for up to eight rows: y = activation(alpha * norm(x) W^T + bias) + residual. With a
// gated weight, y = activation(gate) * up + residual, where gate and up are the two halves of alpha
// * norm(x) W^T + bias. K and V may be stored in the KV cache instead of in y. With split RMSNorm
// (an RMSNorm between two GEMMs, each of which computes one half; see NormOutput) the kernel
// computes the second half of the norm of x, the first half of the norm of y, or both.
// Shapes: x [rows, k] T or f32, W [n, k] T, y [rows, columns] Out; rows <= 8, k a multiple of 32.
// Accumulation: the norm is computed in f32 and x is rounded to T once. mma in f32: each warp sums
// its steps of k in ascending order, then the warps' sums are added in warp order. The order
// depends only on the shape of W.
// Mapping: a CTA loops over tiles of 16 rows of W (gated: 8 gate rows and their 8 up rows). Its
// warps split k in interleaved steps of 32 values. Loads of W, biases, gamma and beta start before
// the kernel waits for its inputs. W goes through shared memory with up to 64 KiB per CTA in
// flight, also across tiles. Between the wait and the last store there is one round trip to memory:
// x, the residual, cache slots and partial sums of squares are loaded together.
// Bound: HBM, W is read once: 2 n k bytes at 4.3 TB/s on an H200. In a decoder step of a small
// model the bound is latency: a kernel takes at least 0.9 us, even if it only loads and stores.
// Tests: tests/kernels/linear/linear_test.cc, linear/norm_epilogue_test.cc,
// linear/split_norm_test.cc. Measurements: linear/NOTES.md.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kWarps * 32, 2)
    GemvKernel(const __grid_constant__ typename Shape::Args a) {
  using Sums = GemvPartialSums<Shape>;
  extern __shared__ __align__(16) char shared[];
  float* norm = reinterpret_cast<float*>(shared + a.shared.norm_at);
  float* scales = nullptr;
  if constexpr (Shape::Args::kHalves) scales = reinterpret_cast<float*>(shared + a.scales_at);
  const GemvThread<Shape::kWarps> thread(a.weights.k);
  const int steps = thread.StepsOf(thread.warp);
  int tile = static_cast<int>(blockIdx.x);

  GemvInputs<Shape>::BeginNorm(a, thread, norm);
  GemvWeights<Shape> weights(a, thread, shared);
  weights.Begin();
  GemvEpilogue<Shape> output;
  output.Begin(a, tile);
  GemvInputs<Shape> inputs(a, thread);
  WaitOnDependentGrids();

  inputs.Load(0);
  output.LoadInputs(a);
  if constexpr (Shape::Args::kHalves) FinishNorm<Shape>(a, thread, scales);
  if constexpr (Shape::kWide) {
    if (a.input.gamma != nullptr) {
      weights.WaitForOldest();
      __syncwarp();
      inputs.Normalise(a, thread, reinterpret_cast<float2*>(shared + a.shared.moments_at), norm);
    }
  }
  inputs.Round();
  for (int turn = 0;; ++turn) {
    Sums sums;
    for (int first = 0; first < steps; first += Shape::kSteps) {
      if (steps > Shape::kSteps && turn + first > 0) {
        inputs.Load(first);
        inputs.Round();
      }
#pragma unroll
      for (int i = 0; i < Shape::kSteps; ++i) {
        if (first + i >= steps) break;
        uint4 top, bottom;
        weights.Take(top, bottom);
        sums.Add(top, bottom, inputs.Pairs(i));
      }
    }
    // Consecutive tiles alternate between two buffers of partial sums, so that one barrier per tile
    // is enough.
    float* parts = reinterpret_cast<float*>(shared + a.shared.parts_at) +
                   turn % 2 * Shape::kWarps * kGemvMaxRows * Sums::kStride;
    sums.Leave(thread, parts);
    __syncthreads();
    output.Store(a, parts, scales);
    tile += static_cast<int>(gridDim.x);
    if (tile >= a.weights.tiles) break;
    output.Begin(a, tile);
    output.LoadInputs(a);
  }
}

// Whether the kernel supports this weight type, k and number of rows.
bool Fits(const WeightView& w, int64_t rows) {
  return IsHalf(w.type()) && rows <= kGemvMaxRows && w.k() % kGemvStep == 0;
}

// Sets the layout of the shared memory of a CTA that computes `turns` tiles; returns its size in
// bytes.
template <typename Shape>
int LayOutSharedMemory(int turns, typename Shape::Args* a) {
  using Weights = GemvWeights<Shape>;
  constexpr int kWarps = Shape::kWarps;
  constexpr int kPartBytes = kWarps * kGemvMaxRows * GemvPartialSums<Shape>::kStride * 4;
  const int k = a->weights.k;
  const int steps = (k / kGemvStep + kWarps - 1) / kWarps * turns;  // of one warp, over all tiles
  GemvSharedMemory& to = a->shared;
  to.warp_bytes = std::min(steps, Weights::kAhead) * Weights::kStepBytes;
  to.parts_at = kWarps * to.warp_bytes;
  to.moments_at = to.parts_at + std::min(turns, 2) * kPartBytes;
  if constexpr (Shape::Args::kHalves) {
    a->scales_at = to.moments_at;
    to.moments_at += kGemvMaxRows * 4;
  }
  const bool has_norm = a->input.gamma != nullptr;
  to.norm_at = to.moments_at + (has_norm ? kGemvMaxRows * kWarps * 8 : 0);
  const int norms = !has_norm ? 0 : a->input.beta == nullptr ? 1 : 2;
  return to.norm_at + norms * k * 4;
}

template <typename Shape>
void LaunchKernel(typename Shape::Args a, CudaStream& stream) {
  constexpr int kWarps = Shape::kWarps;
  const auto kernel = GemvKernel<Shape>;
  auto& w = a.weights;
  w.channels = w.gated ? kGemvChannels / 2 : kGemvChannels;
  w.tiles = (a.output.columns + w.channels - 1) / w.channels;
  // `at_once`: number of CTAs that can be resident on the GPU. `turns`: tiles per CTA, rounded up,
  // if `at_once` CTAs share all tiles. `blocks`, the grid size: the smallest number of CTAs that
  // computes all tiles with at most `turns` tiles per CTA.
  const int at_once = stream.num_sms() * kBlocksPerUnit;
  const int turns = (w.tiles + at_once - 1) / at_once;
  const int blocks = (w.tiles + turns - 1) / turns;

  const int shared = LayOutSharedMemory<Shape>(turns, &a);
  // A CTA can start while CTAs of another kernel still run on its SM only if both kernels use the
  // same split between L1 and shared memory.
  QT_CUDA(stream, cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributePreferredSharedMemoryCarveout,
                                       cudaSharedmemCarveoutMaxShared));
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(kWarps * 32),
         static_cast<size_t>(shared), kernel, a);
}

template <typename Out>
void SetCache(const KvOutput& kv, CudaStream& stream, GemvKvArgs<Out>* to) {
  if (kv.cache == nullptr) return;
  const KvCache& cache = *kv.cache;
  to->cache = cache.as<Out>();
  to->slots = stream.DevicePtr(kv.slots.data());
  to->page_elements = cache.page_elements();
  to->key_offset = static_cast<int>(cache.ChunkOffset(kv.layer, false, 0));
  to->value_offset = static_cast<int>(cache.ChunkOffset(kv.layer, true, 0));
  to->inner = static_cast<int>(cache.heads * cache.head_dim);
  to->head_dim = static_cast<int>(cache.head_dim);
  to->page_size = static_cast<int>(cache.page_size);
  to->to_e4m3 = cache.dtype == DType::kF8;
}

template <typename Args>
void SetSplitNorm(const Gemm& p, Args* a) {
  a->squares = p.x_squares.as<float>();
  a->square_parts = static_cast<int>(p.x_squares.dim[1]);
  const NormOutput& next = p.next_norm;
  a->next_gamma = next.gamma.as<float>();
  a->next_scaled = next.scaled.as<typename Args::T>();
  a->next_squares = next.squares.as<float>();
  a->next_stride = next.scaled.stride[0];
}

// Picks kWarps, the warps per CTA, and kSteps, the number of k steps for which a warp holds x in
// registers at a time; the number of registers limits both. With a large k, 16 warps are faster
// than 8 only if there are few CTAs.
template <typename Args>
void LaunchByDepth(const Args& a, CudaStream& stream) {
  if constexpr (Args::kHalves) {
    LaunchKernel<GemvShape<Args, 8, 8>>(a, stream);
  } else {
    if (a.weights.k <= kDeep) return LaunchKernel<GemvShape<Args, 8, 4>>(a, stream);
    constexpr bool kWide = sizeof(typename Args::X) == 4;
    const bool few_blocks = a.weights.n / kGemvChannels <= stream.num_sms() / 2;
    if (kWide || !few_blocks) return LaunchKernel<GemvShape<Args, 8, 8>>(a, stream);
    if constexpr (!kWide) LaunchKernel<GemvShape<Args, 16, 4>>(a, stream);
  }
}

template <typename T, typename X, typename Out, bool kHalves>
void LaunchGemv(const Gemm& p, CudaStream& stream) {
  using Args = GemvArgs<T, X, Out, kHalves>;
  Args a{};
  auto& w = a.weights;
  w.w = static_cast<const T*>(p.w->panels());
  w.n = static_cast<int>(p.w->n());
  w.k = static_cast<int>(p.w->k());
  w.gated = p.w->gated();
  auto& in = a.input;
  in.x = p.x.as<X>();
  in.stride = p.x.stride[0];
  in.rows = static_cast<int>(p.x.dim[0]);
  in.gamma = p.norm_gamma.as<float>();
  in.beta = p.norm_beta.as<float>();
  in.eps = p.norm_eps;
  in.inverse_k = 1.0f / static_cast<float>(w.k);
  auto& out = a.output;
  out.y = p.y.as<Out>();
  out.stride = p.y.stride[0];
  out.columns = w.gated ? w.n / 2 : w.n;
  out.residual = p.residual.as<Out>();
  out.residual_stride = p.residual.stride[0];
  if (p.bias.dtype == DType::kF32) {
    out.bias = p.bias.as<float>();
  } else {
    out.out_bias = p.bias.as<Out>();
  }
  out.alpha = p.alpha;
  out.activation = p.activation;
  w.up_offset = out.columns;
  SetCache(p.kv, stream, &a.kv);
  if constexpr (kHalves) SetSplitNorm(p, &a);
  LaunchByDepth(a, stream);
}

template <typename T>
void LaunchOfTypes(const Gemm& p, CudaStream& stream) {
  const auto to = [&](auto out) {
    using Out = typename decltype(out)::type;
    if (p.x.dtype == DType::kF32) return LaunchGemv<T, float, Out, false>(p, stream);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const bool halves = p.x_squares.defined() || p.next_norm.gamma.defined();
      if (halves) return LaunchGemv<T, T, Out, true>(p, stream);
    }
    LaunchGemv<T, T, Out, false>(p, stream);
  };
  if (p.y.dtype == DType::kF32) return to(TypeTag<float>());
  QT_CHECK(p.y.dtype == WeightDType(p.w->type()));
  to(TypeTag<T>());
}

}  // namespace

bool RunGemv(const Gemm& p, CudaStream& stream) {
  if (p.w == nullptr || !Fits(*p.w, p.x.dim[0]) || !Vectorizable(p.x)) return false;
  QT_CHECK(!p.norm_gamma.defined() || GemvSupportsFusedNorm(*p.w, p.x.dim[0]));
  if (p.w->type() == WeightType::kBF16) {
    LaunchOfTypes<__nv_bfloat16>(p, stream);
  } else {
    LaunchOfTypes<__half>(p, stream);
  }
  return true;
}

bool GemvSupportsFusedNorm(const WeightView& w, int64_t rows) {
  return Fits(w, rows) && w.k() <= kMostNormK;
}

bool GemvSupportsKvStore(const WeightView& w, int64_t rows) { return Fits(w, rows); }

// Only GEMMs in bf16 can write the first half of a split RMSNorm: the values y * gamma
// (NormOutput::scaled) could overflow f16, because they are divided by the root mean square of y
// only in the next GEMM.
int64_t GemvSplitNormParts(const WeightView& w, int64_t rows) {
  const bool does = Fits(w, rows) && w.type() == WeightType::kBF16 && !w.gated();
  return does && w.n() % kGemvChannels == 0 ? w.n() / kGemvChannels : 0;
}

// A split RMSNorm of x (its first half is in the epilogue of the previous GEMM) is supported only
// for large k: with a small k, a norm that this GEMM computes alone (norm_gamma) costs no more.
bool GemvSupportsSplitNormInput(const WeightView& w, int64_t rows) {
  return Fits(w, rows) && w.type() == WeightType::kBF16 && w.k() > kDeep;
}

}  // namespace quintet::cuda
