// Parts of the gemv kernel for up to eight rows (linear/gemv.cu): the loads of W and x, the partial
// sums of a warp, and the epilogue of a thread.
//
// Fragment layout, as in mma.cuh: lane = 4 g + t. The k index is permuted in the same way for W and
// x: of 32 consecutive values of k, lane 4 g + t has the values 8 t to 8 t + 7, which are
// contiguous in memory.
#pragma once

#include <type_traits>

#include "kernels/linear/gemm.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {

constexpr int kGemvMaxRows = 8;    // rows of x: the N side of mma.m16n8k16
constexpr int kGemvChannels = 16;  // rows of W in a tile: the M side of mma.m16n8k16
constexpr int kGemvStep = 32;      // values of k in one step of a warp

// Arguments of split RMSNorms before and after the GEMM. Such a norm stands between two GEMMs: the
// epilogue of the first GEMM computes one half of the norm, and the epilogue of the second GEMM
// computes the other half (NormOutput in linear.h).
template <typename T>
struct GemvSplitNorm {
  // Split RMSNorm before this GEMM (x_squares): partial sums of squares [rows, square_parts] that
  // the previous GEMM wrote. Null if there is no such norm.
  const float* squares;
  int square_parts;
  int scales_at;  // shared memory offset of the f32 norm scale of each row, in bytes
  // Split RMSNorm after this GEMM (NormOutput): each tile of 16 columns of y writes y * gamma to
  // next_scaled and one partial sum of squares per row to next_squares. Null if there is no such
  // norm.
  const float* next_gamma;
  T* next_scaled;
  float* next_squares;
  int64_t next_stride;
};
// Base class of GemvArgs in kernels that do not support split RMSNorm. It is empty, so these
// kernels have no arguments for it.
struct GemvNoSplitNorm {};

// The weights W, and how they are divided into tiles.
template <typename T>
struct GemvWeightArgs {
  const T* w;  // [n, k]
  int n, k;
  int channels, tiles;  // columns of y in one tile; number of tiles
  int up_offset;        // gated: rows of W from a gate channel to its up channel
  bool gated;
};

// The input x of the GEMM, and the norm that the kernel applies to x, if any.
template <typename X>
struct GemvInputArgs {
  const X* x;      // [rows, k]
  int64_t stride;  // elements between rows
  int rows;
  const float* gamma;  // [k] weight of the norm of f32 x, or null: no norm
  const float* beta;   // [k] bias of LayerNorm, or null: RMSNorm
  float eps, inverse_k;
};

// The output y = activation(alpha * x W^T + bias) + residual of the GEMM, and the operands of its
// epilogue.
template <typename Out>
struct GemvOutputArgs {
  Out* y;                           // [rows, columns]
  const Out* residual;              // [rows, columns], or null
  int64_t stride, residual_stride;  // elements between rows
  int columns;
  const float* bias;    // [n] f32, or null
  const Out* out_bias;  // [n], or null
  float alpha;
  Activation activation;
};

// KV cache (KvOutput). If there is one, the GEMM computes Q, K and V: with inner = heads *
// head_dim, its columns [0, inner) go to y, columns [inner, 2 inner) are K and [2 inner, 3 inner)
// are V.
template <typename Out>
struct GemvKvArgs {
  Out* cache;            // null: all columns go to y
  const int32_t* slots;  // [rows] cache slot of each row; negative: the row is not stored
  int64_t page_elements;
  int key_offset, value_offset;  // offsets of the layer's K and V in a cache page, in elements
  int inner, head_dim, page_size;
  bool to_e4m3;  // the cache is an array of e4m3; values are rounded to Out first
};

// Layout of the CTA's shared memory. warp_bytes is the size of the buffer that holds the weights of
// one warp. The other members are byte offsets: the partial sums of W x^T begin at parts_at, the
// moments of the fused norm (mean and sum of squared deviations, for each row and warp) at
// moments_at, and the gamma and beta of this norm at norm_at.
struct GemvSharedMemory {
  int warp_bytes, parts_at, moments_at, norm_at;
};

// Kernel arguments. T_: type of W. X_: type of x (T_ or f32). Out_: type of y. kHalves_: whether
// the kernel supports split RMSNorm (GemvSplitNorm).
template <typename T_, typename X_, typename Out_, bool kHalves_>
struct GemvArgs : std::conditional_t<kHalves_, GemvSplitNorm<T_>, GemvNoSplitNorm> {
  using T = T_;
  using X = X_;
  using Out = Out_;
  static constexpr bool kHalves = kHalves_;
  GemvWeightArgs<T> weights;
  GemvInputArgs<X> input;
  GemvOutputArgs<Out> output;
  GemvKvArgs<Out> kv;
  GemvSharedMemory shared;
};

// Compile-time shape of the kernel: kWarps warps per CTA; a warp holds the values of x for kSteps
// steps in registers at a time. A step is kGemvStep values of k.
template <typename Args_, int kWarps_, int kSteps_>
struct GemvShape {
  using Args = Args_;
  static constexpr int kWarps = kWarps_, kSteps = kSteps_;
  // x is f32.
  static constexpr bool kWide = sizeof(typename Args::X) == 4;
};

// The position of a thread in its CTA. Warp w computes the steps w, w + kWarps, ...; a step is
// kGemvStep values of k.
template <int kWarps>
struct GemvThread {
  int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int g = lane / 4, t = lane % 4;
  int steps;  // k / kGemvStep

  __device__ explicit GemvThread(int k) : steps(k / kGemvStep) {}
  // Number of steps of k that warp w computes in each tile.
  __device__ int StepsOf(int w) const { return (steps - w + kWarps - 1) / kWarps; }
};

// Asynchronous copies of a warp's weights into a ring buffer in shared memory, in the order in
// which the warp multiplies them: first its k-steps of the CTA's first tile, then those of the next
// tile, and so on. Each lane reads back only what it copied itself, so the lanes need no barrier.
template <typename Shape>
class GemvWeights {
  using Args = typename Shape::Args;
  using T = typename Args::T;
  using Thread = GemvThread<Shape::kWarps>;

 public:
  static constexpr int kStepBytes = kGemvChannels * kGemvStep * 2;
  static constexpr int kAhead = (64 << 10) / Shape::kWarps / kStepBytes;  // steps in flight

  __device__ GemvWeights(const Args& a, const Thread& thread, char* shared)
      : a_(a),
        thread_(thread),
        shared_(shared + thread.warp * a.shared.warp_bytes + thread.lane * 16) {
    tile_ = thread.warp < thread.steps ? static_cast<int>(blockIdx.x) : a.weights.tiles;
    step_ = thread.warp;
    PointAtTile();
  }

  // Starts copying the weights of the warp's first kAhead steps to the ring.
  __device__ void Begin() {
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) CopyNext();
  }

  // Returns the lane's weights of the oldest k-step in the ring buffer: `top` for the first eight
  // channels of the tile, `bottom` for the other eight. Starts copying the weights of another
  // k-step into the slot that this frees.
  __device__ void Take(uint4& top, uint4& bottom) {
    WaitForOldest();
    const char* from = shared_ + used_ * kStepBytes;
    top = *reinterpret_cast<const uint4*>(from);
    bottom = *reinterpret_cast<const uint4*>(from + kStepBytes / 2);
    used_ = used_ + 1 == kAhead ? 0 : used_ + 1;
    CopyNext();
  }

  // Waits until the weights of the oldest k-step in the ring buffer have arrived. The copies of
  // gamma and beta, which the lane started before the first weights, have then arrived, too.
  __device__ void WaitForOldest() { CpAsyncWait<kAhead - 1>(); }

 private:
  // Sets the source pointers for the tile whose weights are copied next. A lane whose channel is
  // past the end loads the last channel instead; its result is not written.
  __device__ void PointAtTile() {
    const int first = min(tile_, a_.weights.tiles - 1) * a_.weights.channels;
    const int64_t top = min(first + thread_.g, a_.output.columns - 1);
    const int64_t bottom = a_.weights.gated ? top + a_.weights.up_offset
                                            : min(first + thread_.g + 8, a_.weights.n - 1);
    top_ = a_.weights.w + top * a_.weights.k + 8 * thread_.t;
    bottom_ = a_.weights.w + bottom * a_.weights.k + 8 * thread_.t;
  }

  // Starts copying the weights of the warp's next step to the ring, if there is another step.
  __device__ void CopyNext() {
    if (tile_ < a_.weights.tiles) {
      char* to = shared_ + copied_ * kStepBytes;
      CpAsync16(SharedAddress(to), top_ + step_ * kGemvStep, true);
      CpAsync16(SharedAddress(to + kStepBytes / 2), bottom_ + step_ * kGemvStep, true);
      copied_ = copied_ + 1 == kAhead ? 0 : copied_ + 1;
      step_ += Shape::kWarps;
      if (step_ >= thread_.steps) {
        step_ = thread_.warp;
        tile_ += static_cast<int>(gridDim.x);
        PointAtTile();
      }
    }
    CpAsyncCommit();
  }

  const Args& a_;
  const Thread& thread_;
  char* shared_;
  const T *top_, *bottom_;
  int tile_, step_;            // tile and k step of the next copy
  int copied_ = 0, used_ = 0;  // ring slots of the next copy and of the next Take
};

// The values of x that a warp multiplies, in registers as pairs of T. kSteps steps of k are loaded
// at a time.
template <typename Shape>
class GemvInputs {
  using Args = typename Shape::Args;
  using T = typename Args::T;
  using X = typename Args::X;
  using Thread = GemvThread<Shape::kWarps>;
  static constexpr int kWarps = Shape::kWarps, kSteps = Shape::kSteps;

 public:
  // Starts the copies of gamma and beta to shared memory `norm` [2][k]; each warp copies the values
  // for its own steps of k. No kernel writes gamma and beta, so the copies need not wait for the
  // previous kernel.
  __device__ static void BeginNorm(const Args& a, const Thread& thread, float* norm) {
    if (a.input.gamma == nullptr || thread.lane >= (a.input.beta == nullptr ? 8 : 16)) return;
    const float* from = (thread.lane < 8 ? a.input.gamma : a.input.beta) + thread.lane % 8 * 4;
    float* to = norm + thread.lane / 8 * a.weights.k + thread.lane % 8 * 4;
    for (int at = thread.warp * kGemvStep; at < a.weights.k; at += kWarps * kGemvStep) {
      CpAsync16(SharedAddress(to + at), from + at, true);
    }
  }

  __device__ GemvInputs(const Args& a, const Thread& thread)
      : x_(a.input.x + thread.g * a.input.stride + thread.warp * kGemvStep + 8 * thread.t),
        steps_(thread.g < a.input.rows ? thread.StepsOf(thread.warp) : 0) {}

  // Loads the values of x for the warp's k steps [first, first + kSteps). Steps past the warp's
  // last one, and rows past the last row, are filled with zeros.
  __device__ void Load(int first) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const bool there = first + i < steps_;
      const X* from = x_ + (first + i) * kWarps * kGemvStep;
      if constexpr (Shape::kWide) {
        float4 low = {}, high = {};
        if (there) low = *reinterpret_cast<const float4*>(from);
        if (there) high = *reinterpret_cast<const float4*>(from + 4);
        float(&v)[8] = values_[i];
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
      } else {
        pairs_[i] = {0, 0, 0, 0};
        if (there) pairs_[i] = *reinterpret_cast<const uint4*>(from);
      }
    }
  }

  // Normalises the loaded values of x, which must cover all of k. Each warp writes the mean of its
  // part of a row (0 for RMSNorm) and the sum of squared deviations from that mean to moments
  // [row][warp]; every warp then merges the moments of all warps by the method of Chan, Golub and
  // LeVeque (1979), which avoids cancellation. Contains a barrier: all threads of the CTA must call
  // it.
  __device__ void Normalise(const Args& a, const Thread& thread, float2* moments,
                            const float* norm) {
    const int own = thread.StepsOf(thread.warp);
    float mean = 0.0f;
    if (a.input.beta != nullptr) {
      mean = __fdividef(SumOfRow(Sum(own, [](float v) { return v; })), Values(max(own, 1)));
    }
    const float squares = SumOfRow(Sum(own, [&](float v) { return (v - mean) * (v - mean); }));
    if (thread.t == 0) moments[thread.g * kWarps + thread.warp] = {mean, squares};
    __syncthreads();
    const float2 merged = Merge(a, thread, moments + thread.g * kWarps + thread.t);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i >= own) break;
      const float* at = norm + (thread.warp + i * kWarps) * kGemvStep + 8 * thread.t;
      Scale(a, merged, at, values_[i]);
      Scale(a, merged, at + 4, values_[i] + 4);
    }
  }

  // Rounds the loaded values to pairs of T.
  __device__ void Round() {
    if constexpr (Shape::kWide) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const float(&v)[8] = values_[i];
        pairs_[i] = {PackPair<T>(v[0], v[1]), PackPair<T>(v[2], v[3]), PackPair<T>(v[4], v[5]),
                     PackPair<T>(v[6], v[7])};
      }
    }
  }

  __device__ const uint4& Pairs(int i) const { return pairs_[i]; }

 private:
  // Number of values of a row that `steps` steps of k contain.
  static __device__ float Values(int steps) { return static_cast<float>(steps * kGemvStep); }

  // Returns the sum of v over the four lanes that share a row.
  static __device__ float SumOfRow(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  }

  // Returns the sum of f(value) over the lane's values of x in the first `steps` steps of the warp.
  // The eight values of a step are added as a tree, then the sums of the steps in order.
  template <typename F>
  __device__ float Sum(int steps, F f) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const float(&v)[8] = values_[i];
      const float own =
          ((f(v[0]) + f(v[1])) + (f(v[2]) + f(v[3]))) + ((f(v[4]) + f(v[5])) + (f(v[6]) + f(v[7])));
      sum += i < steps ? own : 0.0f;
    }
    return sum;
  }

  // Mean and 1 / standard deviation of a row (RMSNorm: 0 and 1 / root mean square), merged from the
  // moments of all warps. Four lanes share a row: lane t of them reads the moments of the warps t,
  // t + 4, t + 8, ...
  __device__ static float2 Merge(const Args& a, const Thread& thread, const float2* moments) {
    float2 part[kWarps / 4];
    float mean = 0.0f, squares = 0.0f;
#pragma unroll
    for (int j = 0; j < kWarps / 4; ++j) {
      part[j] = moments[4 * j];
      squares += part[j].y;
    }
    if (a.input.beta != nullptr) {
      const auto values = [&](int j) { return Values(thread.StepsOf(thread.t + 4 * j)); };
#pragma unroll
      for (int j = 0; j < kWarps / 4; ++j) mean += values(j) * part[j].x;
      mean = SumOfRow(mean) * a.input.inverse_k;
#pragma unroll
      for (int j = 0; j < kWarps / 4; ++j) {
        squares += values(j) * (part[j].x - mean) * (part[j].x - mean);
      }
    }
    return {mean, rsqrtf(SumOfRow(squares) * a.input.inverse_k + a.input.eps)};
  }

  // Normalises v[0] to v[3], four consecutive values of a row, with moment = {mean, 1 / deviation}.
  // Their gamma begins at `norm` and their beta (LayerNorm) at norm + k.
  __device__ static void Scale(const Args& a, const float2& moment, const float* norm, float* v) {
    const float4 gamma = *reinterpret_cast<const float4*>(norm);
    float4 beta = {};
    if (a.input.beta != nullptr) beta = *reinterpret_cast<const float4*>(norm + a.weights.k);
    v[0] = (v[0] - moment.x) * moment.y * gamma.x + beta.x;
    v[1] = (v[1] - moment.x) * moment.y * gamma.y + beta.y;
    v[2] = (v[2] - moment.x) * moment.y * gamma.z + beta.z;
    v[3] = (v[3] - moment.x) * moment.y * gamma.w + beta.w;
  }

  const X* x_;  // values of the lane in the warp's first step
  int steps_;   // steps of the warp; 0 if the lane's row is past the end
  float values_[Shape::kWide ? kSteps : 1][8];
  uint4 pairs_[kSteps];
};

// Second half of a split RMSNorm: writes the norm scale of each row, 1 / sqrt(mean square + eps),
// to `scales` [row]. Warp w handles row w and keeps four loads per lane in flight. Call it after
// WaitOnDependentGrids.
template <typename Shape>
__device__ void FinishNorm(const typename Shape::Args& a, const GemvThread<Shape::kWarps>& thread,
                           float* scales) {
  if (a.squares == nullptr || thread.warp >= a.input.rows) return;
  const float* row = a.squares + thread.warp * a.square_parts;
  float sum = 0.0f;
  for (int first = thread.lane; first < a.square_parts; first += 4 * 32) {
    float part[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = first + j * 32;
      part[j] = at < a.square_parts ? row[at] : 0.0f;
    }
    sum += (part[0] + part[1]) + (part[2] + part[3]);
  }
  sum = WarpSum(sum);
  if (thread.lane == 0) scales[thread.warp] = rsqrtf(sum * a.input.inverse_k + a.input.eps);
}

// The partial sums of one warp for one tile: W x^T over the warp's steps of k.
template <typename Shape>
class GemvPartialSums {
  using T = typename Shape::Args::T;

 public:
  static constexpr int kStride = kGemvChannels + 4;  // padded against bank conflicts

  __device__ void Add(const uint4& top, const uint4& bottom, const uint4& x) {
    Mma<T>(sums_[0], top.x, bottom.x, top.y, bottom.y, x.x, x.y);
    Mma<T>(sums_[1], top.z, bottom.z, top.w, bottom.w, x.z, x.w);
  }

  // Writes the partial sums to parts [warp][row][kStride] in shared memory.
  __device__ void Leave(const GemvThread<Shape::kWarps>& thread, float* parts) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = 2 * thread.t + i % 2, channel = thread.g + i / 2 * 8;
      parts[(thread.warp * kGemvMaxRows + row) * kStride + channel] = sums_[0][i] + sums_[1][i];
    }
  }

  // Adds the partial sums of one output value over all warps, in warp order.
  __device__ static float Total(const float* parts, int row, int channel) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < Shape::kWarps; ++warp) {
      sum += parts[(warp * kGemvMaxRows + row) * kStride + channel];
    }
    return sum;
  }

 private:
  float sums_[2][4] = {};  // two independent chains of mma
};

// Epilogue of a thread, which computes one value of y in each tile of its CTA.
template <typename Shape>
class GemvEpilogue {
  using Args = typename Shape::Args;
  using Out = typename Args::Out;

 public:
  // Loads values that no kernel writes: the biases, and the gamma of the next norm. May run before
  // WaitOnDependentGrids.
  __device__ void Begin(const Args& a, int tile) {
    const int index = static_cast<int>(threadIdx.x);
    row_ = a.weights.gated ? index / (kGemvChannels / 2) : index / kGemvChannels;
    channel_ = index - row_ * a.weights.channels;
    column_ = tile * a.weights.channels + channel_;
    if (row_ >= a.input.rows || column_ >= a.output.columns) column_ = -1;
    if (column_ < 0) return;
    bias_ = BiasOf(a, column_);
    up_bias_ = a.weights.gated ? BiasOf(a, column_ + a.weights.up_offset) : 0.0f;
    if constexpr (Args::kHalves) {
      if (a.next_gamma != nullptr) gamma_ = a.next_gamma[column_];
    }
    if (!Stored(a)) return;
    const bool value = column_ >= 2 * a.kv.inner;
    const int within = column_ - (value ? 2 : 1) * a.kv.inner;
    offset_ = (value ? a.kv.value_offset : a.kv.key_offset) +
              within / a.kv.head_dim * a.kv.page_size * a.kv.head_dim + within % a.kv.head_dim;
  }

  // Loads values that earlier kernels may have written: the residual and the cache slot. Call it
  // after WaitOnDependentGrids.
  __device__ void LoadInputs(const Args& a) {
    if (column_ < 0) return;
    if (a.output.residual != nullptr)
      residual_ = a.output.residual[row_ * a.output.residual_stride + column_];
    if (Stored(a)) slot_ = a.kv.slots[row_];
  }

  // Computes the value of y of this thread and stores it in y or in the KV cache. parts: partial
  // sums of the warps (GemvPartialSums). scales: norm scales of the rows (FinishNorm).
  __device__ void Store(const Args& a, const float* parts, const float* scales) const {
    if (column_ < 0) return;
    using Sums = GemvPartialSums<Shape>;
    float alpha = a.output.alpha;
    if constexpr (Args::kHalves) {
      if (a.squares != nullptr) alpha *= scales[row_];
    }
    float v = Activated(a.output.activation, Sums::Total(parts, row_, channel_) * alpha + bias_);
    if (a.weights.gated) v *= Sums::Total(parts, row_, channel_ + 8) * alpha + up_bias_;
    if (a.output.residual != nullptr) v += ToF32(residual_);
    if (!Stored(a)) {
      a.output.y[row_ * a.output.stride + column_] = FromF32<Out>(v);
      if constexpr (Args::kHalves) {
        if (a.next_gamma != nullptr) BeginNextNorm(a, v);
      }
    } else if (slot_ >= 0) {
      const int64_t at = slot_ / a.kv.page_size * a.kv.page_elements +
                         slot_ % a.kv.page_size * a.kv.head_dim + offset_;
      if constexpr (sizeof(Out) == 2) {
        if (a.kv.to_e4m3) {
          RoundAndStoreE4m3<Out, 1>(&v, reinterpret_cast<uint8_t*>(a.kv.cache) + at);
          return;
        }
      }
      a.kv.cache[at] = FromF32<Out>(v);
    }
  }

 private:
  // First half of a split RMSNorm: stores v * gamma and the sum of v^2 over the tile. All 16 lanes
  // of a row participate in the shuffles, because a tile has 16 columns and the number of columns
  // is a multiple of 16.
  __device__ void BeginNextNorm(const Args& a, float v) const {
    a.next_scaled[row_ * a.next_stride + column_] = FromF32<typename Args::T>(v * gamma_);
    float square = v * v;
    const uint32_t lanes = threadIdx.x % 32 < kGemvChannels ? 0xffffu : 0xffff0000u;
#pragma unroll
    for (int step = kGemvChannels / 2; step > 0; step /= 2) {
      square += __shfl_xor_sync(lanes, square, step);
    }
    if (channel_ == 0) {
      a.next_squares[row_ * a.weights.tiles + column_ / kGemvChannels] = square;
    }
  }
  // Whether the value goes to the KV cache instead of y.
  __device__ bool Stored(const Args& a) const {
    return a.kv.cache != nullptr && column_ >= a.kv.inner;
  }
  __device__ static float BiasOf(const Args& a, int channel) {
    if (a.output.bias != nullptr) return a.output.bias[channel];
    return a.output.out_bias != nullptr ? ToF32(a.output.out_bias[channel]) : 0.0f;
  }

  int row_, channel_, column_;  // column_ is -1 if this thread has no value to write
  float bias_, up_bias_, gamma_;
  Out residual_;
  int slot_, offset_;  // cache slot; offset in elements from the first value of that slot
};

}  // namespace quintet::cuda
