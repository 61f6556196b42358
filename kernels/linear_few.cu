#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/linear_few.cuh"

namespace quintet::cuda {
namespace {

constexpr int64_t kDeep = 1024;  // k of more: more warps, or more of x in each
// All of a row is in a block's registers at once when it is normalised.
constexpr int64_t kMostNormK = 2 * kDeep;
constexpr int kBlocksPerUnit = 2;  // of a multiprocessor; those of another kernel are beside them

// What: y = activation(alpha * norm(x) W^T + bias) [* up] + residual, of few rows; or keys and
// values to their slots; or halves of norms (NormOutput, x_squares).
// Shapes: x [rows, k] T or f32, W [n, k] T, y [rows, columns] Out; rows at most 8, k a multiple of
// 32.
// Math: the norm in f32, then x rounded to T once; products on tensor cores, f32 sums: each warp's
// share of k in ascending order, then the warps' in theirs: an order that W's shape alone decides.
// Map: a block takes tiles of 16 rows of W in turns (gated: 8 gate rows and the 8 up rows that
// belong to them); its warps take turns along k, 32 values at a time. W, biases, gamma and beta are
// asked for before the kernel waits for its inputs; W comes through shared memory, 64 KiB a block
// on their way at once, across tiles too. Between the wait and the last store there is one round
// trip to memory: x, residual, slots and squares are asked for together.
// Bound: W read once: n * k * 2 bytes over 4.3 TB/s on an H200; in a step of a small model the
// chain of kernels: 0.9 us for a link that only loads and stores.
//
// Versions: us of a recorded step of T5-base at 1 | 8 rows (bench_steps_gpu, H200, with the decode
// attention of the day).
//   1  one tile a block, W in registers, x staged in shared memory and normalised in every block:
//      471 | 570
//   2  tiles of 8 channels, the next kernel let in at the first instruction: predicted 275, got
//      427 | 616, since every block normalises x again, through barriers and three reads of it
//   3  16 channels, wide weights left to cuBLASLt: 391 | 484; 8 channels where tiles are few: 343
//   4  norms in kernels of their own from 2 rows on: 340 | 406
//   5  as here, but with 8 channels where tiles are few: predicted 300 | 360, got 302 | 344
//   6  16 channels everywhere: 287 | 320
//   7  halves of norms where k > 1,024; 8 warps instead of 16 where k is deep and blocks are many
// Flan-T5-XL, whose weights take 664 us to read once, at 1 row: version 4 1,704, 5 1,451 (two
// blocks a multiprocessor: 1,296), 6 1,220. Version 7 at 1 | 8 rows: predicted 1,110 at 1, got
// 1,059 | 1,346 where version 6 takes 1,195 | 1,407 in the same run (8 warps alone 1,176 | 1,347;
// halves with 16 warps, whose registers spill, 1,190 | 1,522). T5-base has neither: with halves it
// takes 253 instead of 248, with 8 warps 260.
//
// Tried with 6 and left:
//   the next product's weights brought to the L2 cache meanwhile: predicted 250, got 286 to 292, XL
//     1,252 to 1,406. They are not what a link waits for: with all layers' weights in that cache a
//     step takes 276
//   the next kernel let in before the wait: 280 | 318, but see WaitForInputs
//   the driver's own split of shared memory: 303
//   norms on the way of 32 rows: 645 instead of 539, since every block reads 98 KB of x
// Spec: tests/kernels/linear_test.cc, linear_norm_test.cc, linear_half_norm_test.cc.
template <typename Shape>
__global__ void __launch_bounds__(Shape::kWarps * 32, 2)
    FewRowsKernel(const __grid_constant__ typename Shape::Args a) {
  using Sums = FewSums<Shape>;
  extern __shared__ __align__(16) char shared[];
  float* norm = reinterpret_cast<float*>(shared + a.norm_at);
  float* scales = nullptr;
  if constexpr (Shape::Args::kHalves) scales = reinterpret_cast<float*>(shared + a.scales_at);
  const FewPlace<Shape::kWarps> place(a.k);
  const int steps = place.StepsOf(place.warp);
  int tile = static_cast<int>(blockIdx.x);

  FewInputs<Shape>::BeginNorm(a, place, norm);
  FewWeights<Shape> weights(a, place, shared);
  weights.Begin();
  FewOutput<Shape> output;
  output.Begin(a, tile);
  FewInputs<Shape> inputs(a, place);
  WaitForInputs();

  inputs.Load(0);
  output.LoadInputs(a);
  if constexpr (Shape::Args::kHalves) FinishNorm<Shape>(a, place, scales);
  if constexpr (Shape::kWide) {
    if (a.gamma != nullptr) {
      weights.WaitForOldest();
      __syncwarp();
      inputs.Normalise(a, place, reinterpret_cast<float2*>(shared + a.moments_at), norm);
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
    // Two places in turns: one barrier a tile.
    float* parts = reinterpret_cast<float*>(shared + a.parts_at) +
                   turn % 2 * Shape::kWarps * kFewMostRows * Sums::kStride;
    sums.Leave(place, parts);
    __syncthreads();
    output.Store(a, parts, scales);
    tile += static_cast<int>(gridDim.x);
    if (tile >= a.tiles) break;
    output.Begin(a, tile);
    output.LoadInputs(a);
  }
}

// Few enough rows, and k made for 16-byte pieces.
bool Fits(const LinearWeight& w, int64_t rows) {
  return IsHalf(w.type()) && rows <= kFewMostRows && w.k() % kFewStep == 0;
}

template <typename Shape>
void LaunchKernel(typename Shape::Args a, Stream& stream) {
  using Weights = FewWeights<Shape>;
  constexpr int kWarps = Shape::kWarps;
  const auto kernel = FewRowsKernel<Shape>;
  a.channels = a.gated ? kFewChannels / 2 : kFewChannels;
  a.tiles = (a.columns + a.channels - 1) / a.channels;
  // Each block has the same number of tiles but the last.
  const int at_once = stream.device().multiprocessors() * kBlocksPerUnit;
  const int turns = (a.tiles + at_once - 1) / at_once;
  const int blocks = (a.tiles + turns - 1) / turns;

  const int steps = (a.k / kFewStep + kWarps - 1) / kWarps * turns;  // of a warp in all
  a.warp_bytes = std::min(steps, Weights::kAhead) * Weights::kStepBytes;
  a.parts_at = kWarps * a.warp_bytes;
  a.moments_at =
      a.parts_at + std::min(turns, 2) * kWarps * kFewMostRows * FewSums<Shape>::kStride * 4;
  if constexpr (Shape::Args::kHalves) {
    a.scales_at = a.moments_at;
    a.moments_at += kFewMostRows * 4;
  }
  a.norm_at = a.moments_at + (a.gamma == nullptr ? 0 : kFewMostRows * kWarps * 8);
  const int norms = a.gamma == nullptr ? 0 : a.beta == nullptr ? 1 : 2;
  const int shared = a.norm_at + norms * a.k * 4;
  // A block begins beside another kernel's only where the memory is split alike.
  QT_CUDA(stream.device(), cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                cudaFuncAttributePreferredSharedMemoryCarveout,
                                                cudaSharedmemCarveoutMaxShared));
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(kWarps * 32),
         static_cast<size_t>(shared), kernel, a);
}

template <typename Args>
void SetCache(const KvOutput& kv, Stream& stream, Args* a) {
  if (kv.cache == nullptr) return;
  const KvCache& cache = *kv.cache;
  a->cache = cache.as<typename Args::Out>();
  a->slots = stream.Twin(kv.slots.data());
  a->page_elements = cache.page_elements();
  a->key_offset = static_cast<int>(cache.ChunkOffset(kv.layer, false, 0));
  a->value_offset = static_cast<int>(cache.ChunkOffset(kv.layer, true, 0));
  a->inner = static_cast<int>(cache.heads * cache.head_dim);
  a->head_dim = static_cast<int>(cache.head_dim);
  a->page_size = static_cast<int>(cache.page_size);
}

template <typename Args>
void SetHalves(const Product& p, Args* a) {
  a->squares = p.x_squares.as<float>();
  a->square_parts = static_cast<int>(p.x_squares.dim[1]);
  const NormOutput& next = p.next_norm;
  a->next_gamma = next.gamma.as<float>();
  a->next_scaled = next.scaled.as<typename Args::T>();
  a->next_squares = next.squares.as<float>();
  a->next_stride = next.scaled.stride[0];
}

// Registers bound how much of x is on its way at once. Where k is deep, more warps are better only
// for blocks that are few.
template <typename Args>
void LaunchByDepth(const Args& a, Stream& stream) {
  if constexpr (Args::kHalves) {
    LaunchKernel<FewShape<Args, 8, 8>>(a, stream);
  } else {
    if (a.k <= kDeep) return LaunchKernel<FewShape<Args, 8, 4>>(a, stream);
    constexpr bool kWide = sizeof(typename Args::X) == 4;
    const bool few_blocks = a.n / kFewChannels <= stream.device().multiprocessors() / 2;
    if (kWide || !few_blocks) return LaunchKernel<FewShape<Args, 8, 8>>(a, stream);
    if constexpr (!kWide) LaunchKernel<FewShape<Args, 16, 4>>(a, stream);
  }
}

template <typename T, typename X, typename Out, bool kHalves>
void LaunchFewRows(const Product& p, Stream& stream) {
  using Args = FewArgs<T, X, Out, kHalves>;
  Args a{};
  a.w = static_cast<const T*>(p.w->panels());
  a.x = p.x.as<X>();
  a.gamma = p.norm_gamma.as<float>();
  a.beta = p.norm_beta.as<float>();
  if (p.bias.dtype == DType::kF32) {
    a.bias = p.bias.as<float>();
  } else {
    a.out_bias = p.bias.as<Out>();
  }
  a.residual = p.residual.as<Out>();
  a.y = p.y.as<Out>();
  a.x_stride = p.x.stride[0];
  a.residual_stride = p.residual.stride[0];
  a.y_stride = p.y.stride[0];
  a.gated = p.w->gated();
  a.rows = static_cast<int>(p.x.dim[0]);
  a.n = static_cast<int>(p.w->n());
  a.k = static_cast<int>(p.w->k());
  a.columns = a.gated ? a.n / 2 : a.n;
  a.second = a.columns;
  a.alpha = p.alpha;
  a.eps = p.norm_eps;
  a.inverse_k = 1.0f / static_cast<float>(a.k);
  a.activation = p.activation;
  SetCache(p.kv, stream, &a);
  if constexpr (kHalves) SetHalves(p, &a);
  LaunchByDepth(a, stream);
}

template <typename T>
void LaunchOfTypes(const Product& p, Stream& stream) {
  const auto to = [&](auto out) {
    using Out = typename decltype(out)::type;
    if (p.x.dtype == DType::kF32) return LaunchFewRows<T, float, Out, false>(p, stream);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const bool halves = p.x_squares.defined() || p.next_norm.gamma.defined();
      if (halves) return LaunchFewRows<T, T, Out, true>(p, stream);
    }
    LaunchFewRows<T, T, Out, false>(p, stream);
  };
  if (p.y.dtype == DType::kF32) return to(TypeTag<float>());
  QT_CHECK(p.y.dtype == WeightDType(p.w->type()));
  to(TypeTag<T>());
}

}  // namespace

bool RunFewRows(const Product& p, Stream& stream) {
  if (p.w == nullptr || !Fits(*p.w, p.x.dim[0]) || !Vectorizable(p.x)) return false;
  QT_CHECK(!p.norm_gamma.defined() || LinearTakesNorm(*p.w, p.x.dim[0]));
  if (p.w->type() == WeightType::kBF16) {
    LaunchOfTypes<__nv_bfloat16>(p, stream);
  } else {
    LaunchOfTypes<__half>(p, stream);
  }
  return true;
}

bool LinearTakesNorm(const LinearWeight& w, int64_t rows) {
  return Fits(w, rows) && w.k() <= kMostNormK;
}

bool FewRowsStoreKv(const LinearWeight& w, int64_t rows) { return Fits(w, rows); }

// f16 would overflow: x gamma has not been divided by its norm.
int64_t FewRowsNormParts(const LinearWeight& w, int64_t rows) {
  const bool does = Fits(w, rows) && w.type() == WeightType::kBF16 && !w.gated();
  return does && w.n() % kFewChannels == 0 ? w.n() / kFewChannels : 0;
}

// Where k is small the norm on the way of x costs no more.
bool FewRowsTakeSquares(const LinearWeight& w, int64_t rows) {
  return Fits(w, rows) && w.type() == WeightType::kBF16 && w.k() > kDeep;
}

}  // namespace quintet::cuda
