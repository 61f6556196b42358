// Epilogue of the split-K GEMM kernel (linear/split_k.cuh), and the types that the kernel's
// producer, mainloop and epilogue share: arguments, shared memory layout and the work of a CTA.
#pragma once

#include "kernels/linear/gemm.cuh"
#include "kernels/linear/lora.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {

// Values of k per pipeline stage with 16-bit weights: 128 bytes per row of W and of x. With 8-bit
// weights a stage has twice as many (SplitKTile::kDepth).
constexpr int kSplitKDepth = 64;
constexpr int kSplitKMaxStages = 16;
// The split-K kernel is used for a GEMM with more than 64 rows only if rows * n * k is at most
// this number. InTwo in split_k.cu makes an exception for some larger GEMMs.
constexpr int64_t kSplitKMaxMultiplyAdds = int64_t{1} << 29;
constexpr int kMaxSplits = 8;  // CTAs in a cluster: the portable maximum

struct LoraWord;  // linear/split_k_each_lora.cuh

// Division by a number that is known at launch. Exact if value * by < 2^32.
struct Divisor {
  int by;
  uint32_t inverse;  // 2^32 / by, rounded up; 0: by is 1

  static Divisor Of(int by) {
    return {by, by == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + by - 1) / by)};
  }
  __device__ __forceinline__ int Quotient(int value) const {
    return inverse == 0 ? value : static_cast<int>(__umulhi(static_cast<uint32_t>(value), inverse));
  }
};

// LoRA terms of the GEMM (LinearArgs::lora). Only kernels with SplitKTile::kLora read it.
struct SplitKLora {
  const LoraPart* table;  // entry [adapter * stride + part]
  int64_t stride;
  const int32_t* adapters;  // [rows]; -1: none
  const void* x;            // [rows, k] of the dtype of the weight
  int64_t x_stride;
  LoraWord* t;  // [slices, rows, parts, max_rank / 2]: sums of x a^T over kLoraSlice values of k
  uint64_t* counter;  // LoraWeight::counter
  int parts, max_rank, slices;
  // Divisors for SplitKEachLora: of_row, of_part and of_block find the row, the part and the block
  // of ranks of a work item; of_column finds the part of a column.
  Divisor of_row, of_part, of_block, of_column;
  int blocks;  // kOne: groups of 16 ranks of a tile: 1, 2 or 4 (linear/split_k_one_lora.cuh)
};

struct SplitKArgs {
  const float* bias;                  // [n] f32, or null
  const void* out_bias;               // [n] of the dtype of y, or null
  const void* residual;               // [rows, columns] of the dtype of y, or null
  void* y;                            // [rows, columns]
  int64_t residual_stride, y_stride;  // elements between rows
  int rows, columns, k;
  int up_offset;  // gated: rows of W from a gate channel to its up channel; otherwise 0
  int stages;
  float alpha;
  Activation activation;
  bool y_f32;  // y is f32; otherwise y has the dtype of the weight

  // KV cache (KvOutput), or null. If it is set, the GEMM computes Q, K and V. Let inner = heads *
  // head_dim: columns [0, inner) are Q and go to y; columns [inner, 2 inner) are K and columns
  // [2 inner, 3 inner) are V, and both go to the cache. A cache page has, for each layer, the K
  // heads and then the V heads; consecutive heads are head_stride elements apart.
  void* cache;
  const int32_t* slots;  // [rows] cache slot of each row; negative: the row is not stored
  int inner, head_dim, page_size;
  bool cache_is_e4m3;  // values are rounded to the dtype of the weight first
  int64_t page_elements, layer_offset, head_stride;

  // Split RMSNorm before this GEMM (x_squares): partial sums of squares [rows, square_parts] that
  // the previous GEMM wrote. Null if there is no such norm.
  const float* squares;
  int square_parts;
  float inverse_k, eps;  // 1 / k; epsilon of the norm
  // For an RMSNorm of y that the next GEMM finishes (NormOutput): each channel tile writes y *
  // gamma to next_scaled and a sum of squares per row to next_squares. Null if unused.
  const float* next_gamma;
  void* next_scaled;
  float* next_squares;
  int64_t next_stride;

  const float* w_scales;  // [n] scales of the channels of 8-bit weights; otherwise null
  SplitKLora lora;
};

// Variants of the split-K GEMM kernel. kSmall: one producer thread. kLarge, for large weights: one
// producer thread for W and one for x. kAdds: as kLarge, but the epilogue supports only the
// addition of an f32 residual. This shorter epilogue makes the kernel faster: a CTA runs its
// epilogue only once, so the time to fetch the instructions counts.
enum class SplitKKind { kSmall, kLarge, kAdds };

// How the kernel adds LoRA terms. kOne: all rows have the same adapter or none. kEach: each row has
// an adapter of its own or none.
enum class SplitKAdapters { kNone, kOne, kEach };

// How W is stored: as values of x's type, or one byte each, int8 or e4m3. The kernel converts bytes
// to bf16, which is exact; x is bf16 then.
enum class SplitKWeights { kHalf, kInt8, kE4m3 };

// Compile-time sizes of the kernel. kHalves_: whether the kernel supports split RMSNorm: the first
// half of the norm of y (next_norm) and the second half of the norm of x (x_squares).
template <int kRowsOfTile, bool kHalves_, SplitKKind kKind,
          SplitKAdapters kAdapters = SplitKAdapters::kNone,
          SplitKWeights kWeights_ = SplitKWeights::kHalf>
struct SplitKTile {
  static constexpr SplitKWeights kWeights = kWeights_;
  static constexpr bool kBytes = kWeights != SplitKWeights::kHalf;
  static constexpr int kRows = kRowsOfTile, kChannels = 64;
  static constexpr bool kHalves = kHalves_, kAdds = kKind == SplitKKind::kAdds;
  static constexpr bool kLora = kAdapters != SplitKAdapters::kNone;
  static constexpr bool kOneLora = kAdapters == SplitKAdapters::kOne;
  static constexpr bool kTwoCopy = kKind != SplitKKind::kSmall;  // two producer threads
  // First threads of the producers, and of the LoRA warpgroup or the second consumer (bytes), which
  // wgmma requires to begin at a multiple of a warpgroup. Thread 0 is the first of the consumer.
  static constexpr int kProducerThread = kBytes ? 2 * kWarpgroup : kWarpgroup;
  static constexpr int kAfterProducers = kProducerThread + (kTwoCopy ? 64 : 32);
  static constexpr int kSecondThread = kBytes ? kWarpgroup : kAfterProducers;
  static constexpr int kThreads = kAfterProducers + (kLora ? kWarpgroup : 0);
  static constexpr int kDepth = kBytes ? 2 * kSplitKDepth : kSplitKDepth;  // k per stage
  static constexpr int kXBoxBytes = kRows * 128;  // x of kSplitKDepth values of k
  static constexpr int kWBytes = kChannels * 128, kXBytes = kXBoxBytes * (kDepth / kSplitKDepth);
  static constexpr int kStageBytes = kWBytes + kXBytes;
  // Bytes from one row of partial sums to the next in shared memory. The padding avoids bank
  // conflicts when accumulator fragments are stored.
  static constexpr int kPitchBytes = (kChannels + 4) * 4;
};

constexpr int kSplitKOneLoraPitch = 48;  // bytes of a row of t, for access without bank conflicts

// The factors b of one output row for the columns of this CTA's tile. Index 0: the gate columns, or
// all columns if W is not gated. Index 1: the up columns.
struct alignas(16) SplitKLoraRow {
  const void* b[2];  // of the tile's first column; [columns, rank]
  int rank[2];       // 0: no term
};

// Byte offsets in the shared memory of a CTA. The pipeline buffers start at 0; after the mainloop
// the partial sums of the CTA overwrite them.
struct SplitKSmem {
  int each;      // rows of the tile that each CTA of the cluster finishes
  int received;  // with split-K: partial sums of these rows from every CTA of the cluster
  int residual;  // residual of these rows
  int tail;
  int scales;  // f32 norm scale of each of these rows
  // Buffers for the LoRA terms t b^T, where t = x a^T. kEach (SplitKEachLora), for the `each` rows
  // that this CTA finishes: `lora` holds a SplitKLoraRow per row, followed by t of these rows in
  // f32; `terms` holds their LoRA terms, [each, kChannels] f32. kOne (SplitKOneLora), for all rows
  // of the tile: `lora` holds t; `terms` first holds the partial sums of t of each warp, which the
  // LoRA terms later overwrite.
  int lora, terms;
  int bytes;  // size of all arrays together

  template <typename S>
  __host__ __device__ static SplitKSmem Of(const SplitKArgs& a, int splits) {
    const int rows = a.rows < S::kRows ? a.rows : S::kRows;
    const int ring = a.stages * S::kStageBytes, sums = S::kRows * S::kPitchBytes;
    SplitKSmem l;
    l.each = (rows + splits - 1) / splits;
    l.received = ring > sums ? ring : sums;
    l.residual = l.received + (splits > 1 ? splits * l.each * S::kPitchBytes : 0);
    l.tail = l.residual + (a.residual != nullptr ? l.each * S::kPitchBytes : 0);
    l.scales = l.tail + static_cast<int>(sizeof(Tail)) + S::kRows * 8;
    l.bytes = l.scales + l.each * 4;
    if (!S::kLora) return l;
    l.lora = (l.bytes + 15) / 16 * 16;
    if (S::kOneLora) {
      constexpr int kSumBytes = 4 * 16 * (S::kRows + 4) * 4;
      constexpr int kTermBytes = S::kRows * S::kChannels * 4;
      l.terms = l.lora + 2 * a.lora.blocks * S::kRows * kSplitKOneLoraPitch;
      l.bytes = l.terms + (kSumBytes > kTermBytes ? kSumBytes : kTermBytes);
      return l;
    }
    const int halves = a.up_offset > 0 ? 2 : 1;
    l.terms = l.lora + l.each * (static_cast<int>(sizeof(SplitKLoraRow)) +
                                 halves * a.lora.max_rank * static_cast<int>(sizeof(float)));
    l.bytes = l.terms + l.each * S::kChannels * static_cast<int>(sizeof(float));
    return l;
  }
  struct Tail {
    uint64_t full[kSplitKMaxStages], empty[kSplitKMaxStages], received;
    uint64_t lora_ready;  // kLora: the terms are in shared memory
    uint64_t lora_tag;    // kEach: of this call (TakeTag)
    int64_t row_slot[1];  // [kRows] offset of each row in the cache; negative: not stored
  };
};

__device__ __forceinline__ void CopyAsync8(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" : : "r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void WaitForKernelsBefore() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void PrefetchL2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" : : "l"(global));
}

__device__ __forceinline__ void LoadWords(uint32_t shared, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}
__device__ __forceinline__ float LoadFloat(uint32_t shared) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(shared) : "memory");
  return v;
}
__device__ __forceinline__ void StoreFloat(uint32_t shared, float v) {
  asm volatile("st.shared.f32 [%0], %1;" : : "r"(shared), "f"(v) : "memory");
}
__device__ __forceinline__ void StoreFloat4(uint32_t shared, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(shared), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}
// Loads four consecutive values and returns them as f32. In memory they have type f32 if `f32` is
// true, else T.
template <typename T>
__device__ __forceinline__ float4 LoadFour(const void* from, bool f32) {
  if (f32) return *static_cast<const float4*>(from);
  const uint2 bits = *static_cast<const uint2*>(from);
  const T* v = reinterpret_cast<const T*>(&bits);
  return {ToF32(v[0]), ToF32(v[1]), ToF32(v[2]), ToF32(v[3])};
}
template <typename T>
__device__ __forceinline__ void StoreFour(const float4& v, void* to, int64_t at, bool f32) {
  if (f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(to) + at) = v;
  } else {
    const uint2 bits = {PackPair<T>(v.x, v.y), PackPair<T>(v.z, v.w)};
    *reinterpret_cast<uint2*>(static_cast<T*>(to) + at) = bits;
  }
}

// The work of one CTA: an output tile and a range of k.
template <typename S>
struct SplitKWork {
  int splits, rank;
  int channels;      // columns of y in a tile
  int column;        // first column of the tile
  int row, rows;     // first row of the tile, and rows of y in it
  int begin, count;  // the k range in steps of S::kDepth

  __device__ __forceinline__ explicit SplitKWork(const SplitKArgs& a)
      : splits(ClusterSize()),
        rank(ClusterRank()),
        channels(!S::kAdds && a.up_offset > 0 ? S::kChannels / 2 : S::kChannels),
        column(static_cast<int>(blockIdx.x) / splits * channels),
        row(static_cast<int>(blockIdx.y) * S::kRows),
        rows(min(S::kRows, a.rows - row)) {
    const int all = (a.k + S::kDepth - 1) / S::kDepth;
    begin = all * rank / splits;
    count = all * (rank + 1) / splits - begin;
  }
};

// The epilogue of one thread. Among the rows that this CTA finishes, the thread handles every
// step_-th row, and in each of these rows four consecutive columns.
template <typename T, typename S>
class SplitKEpilogue {
 public:
  __device__ __forceinline__ SplitKEpilogue(const SplitKArgs& a, const SplitKWork<S>& share,
                                            const SplitKSmem& layout, uint32_t shared, int thread)
      : a_(a), share_(share) {
    const int vectors = share.channels / 4;
    const int begin = share.rank * layout.each;
    channel_ = thread % vectors * 4;
    column_ = share.column + channel_;
    row_ = thread / vectors;
    step_ = kWarpgroup / vectors;
    rows_ = column_ < a.columns && row_ < step_ ? min(layout.each, share.rows - begin) : 0;
    first_ = share.row + begin;
    sums_ = shared + channel_ * 4 + (share.splits > 1 ? layout.received : begin * S::kPitchBytes);
    block_bytes_ = layout.each * S::kPitchBytes;
    residual_ = shared + layout.residual + channel_ * 4;
    scales_ = shared + layout.scales;
    if constexpr (S::kLora && !S::kOneLora) terms_ = shared + layout.terms + channel_ * 4;
    bias_ = BiasAt(column_);
    up_bias_ = Gated() ? BiasAt(a.up_offset + column_) : float4{};
    if constexpr (S::kBytes) {
      scale_ = ScaleAt(column_);
      up_scale_ = Gated() ? ScaleAt(a.up_offset + column_) : float4{};
    }
    if (Begins()) {
      gamma_ = *reinterpret_cast<const float4*>(a.next_gamma + column_);
    }
  }

  // Starts the copies of the residual to shared memory. Call it after WaitForKernelsBefore.
  __device__ __forceinline__ void AskForResidual() {
    if (!Adds()) return;
    for (int row = row_; row < rows_; row += step_) {
      const int64_t at = (first_ + row) * a_.residual_stride + column_;
      const uint32_t to = residual_ + row * S::kPitchBytes;
      if (F32()) {
        CpAsync16(to, static_cast<const float*>(a_.residual) + at, true);
      } else {
        CopyAsync8(to, static_cast<const T*>(a_.residual) + at);
      }
    }
  }

  // If the previous GEMM wrote partial sums of squares, computes the norm scale of each row, 1 /
  // sqrt(mean square + eps). Call it after WaitForKernelsBefore. Eight lanes share a row and have
  // all their loads in flight together. Lanes whose row is past the last one load the last row
  // instead; their result is not stored.
  __device__ __forceinline__ void FinishNorm(int thread, int rows) const {
    if (!Finishes() || rows <= 0) return;
    constexpr int kLanes = 8, kAtOnce = kWarpgroup / kLanes,
                  kEach = (S::kRows + kAtOnce - 1) / kAtOnce;
    float sums[kEach] = {};
    const float* from[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = min(thread / kLanes + i * kAtOnce, rows - 1);
      from[i] = a_.squares + (first_ + row) * a_.square_parts;
    }
    for (int first = thread % kLanes; first < a_.square_parts; first += 4 * kLanes) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        float part[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int at = first + j * kLanes;
          part[j] = at < a_.square_parts ? from[i][at] : 0.0f;
        }
        sums[i] += (part[0] + part[1]) + (part[2] + part[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (int step = kLanes / 2; step > 0; step /= 2) {
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
      }
      const int row = thread / kLanes + i * kAtOnce;
      if (thread % kLanes == 0 && row < rows) {
        StoreFloat(scales_ + row * 4, rsqrtf(sums[i] * a_.inverse_k + a_.eps));
      }
    }
  }

  // Writes all output rows of this thread. row_slot: for each row of the tile, the offset of its
  // slot in the KV cache, in elements.
  __device__ __forceinline__ void Run(const int64_t* row_slot) {
    CpAsyncCommit();
    CpAsyncWait<0>();
    if (S::kAdds || a_.activation == Activation::kNone || a_.activation == Activation::kRelu ||
        a_.activation == Activation::kGeluTanh) {
      FinishRows<4, true>(row_slot);
    } else {
      FinishRows<2, false>(row_slot);  // fewer rows at once: the code of these activations is long
    }
  }

 private:
  __device__ __forceinline__ bool Begins() const { return S::kHalves && a_.next_gamma != nullptr; }
  __device__ __forceinline__ bool Finishes() const { return S::kHalves && a_.squares != nullptr; }
  __device__ __forceinline__ bool Gated() const { return !S::kAdds && a_.up_offset > 0; }
  __device__ __forceinline__ bool Adds() const { return S::kAdds || a_.residual != nullptr; }
  __device__ __forceinline__ bool F32() const { return S::kAdds || a_.y_f32; }
  __device__ __forceinline__ float4 BiasAt(int at) {
    if (S::kAdds || column_ >= a_.columns) return {};
    if (a_.bias != nullptr) return *reinterpret_cast<const float4*>(a_.bias + at);
    if (a_.out_bias == nullptr) return {};
    const int bytes = a_.y_f32 ? 4 : 2;
    return LoadFour<T>(static_cast<const char*>(a_.out_bias) + at * bytes, a_.y_f32);
  }

  __device__ __forceinline__ float4 ScaleAt(int at) {
    if (column_ >= a_.columns) return {};
    return __ldg(reinterpret_cast<const float4*>(a_.w_scales + at));
  }

  // Runs the epilogue for the rows of this thread, kAtOnce at a time, so that the shared memory
  // latencies of several rows overlap. kSimple: the activation is kNone, kRelu or kGeluTanh.
  template <int kAtOnce, bool kSimple>
  __device__ __forceinline__ void FinishRows(const int64_t* row_slot) {
    const bool cached = !S::kAdds && column_ >= a_.inner;
    int64_t in_slot = 0;  // offset of this thread's columns within a cache slot
    if (cached) {
      const int within = column_ - a_.inner;
      in_slot = a_.layer_offset + within / a_.head_dim * a_.head_stride + within % a_.head_dim;
    }
#pragma unroll 1
    for (int first = row_; first < rows_; first += kAtOnce * step_) {
      uint32_t at[kAtOnce];  // offsets of the rows; past the last row: that of `first`
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + i * step_;
        at[i] = (row < rows_ ? row : first) * S::kPitchBytes;
      }
      float alpha[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + i * step_;
        alpha[i] = a_.alpha;
        if (Finishes()) alpha[i] *= LoadFloat(scales_ + (row < rows_ ? row : first) * 4);
      }
      float4 v[kAtOnce];
      Sum(sums_, at, alpha, scale_, bias_, first, 0, v);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[i] = Activate<kSimple>(v[i]);
      if (Gated()) {
        float4 up[kAtOnce];
        Sum(sums_ + S::kChannels / 2 * 4, at, alpha, up_scale_, up_bias_, first, 1, up);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          v[i] = {v[i].x * up[i].x, v[i].y * up[i].y, v[i].z * up[i].z, v[i].w * up[i].w};
        }
      }
      if (Adds()) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float4 r = LoadFour<T>(__cvta_shared_to_generic(residual_ + at[i]), F32());
          v[i] = {v[i].x + r.x, v[i].y + r.y, v[i].z + r.z, v[i].w + r.w};
        }
      }
      if (Begins()) BeginNextNorm(first, v);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + i * step_;
        if (row >= rows_) break;
        if (!cached) {
          StoreFour<T>(v[i], a_.y, (first_ + row) * a_.y_stride + column_, F32());
        } else if (const int64_t slot = row_slot[first_ - share_.row + row]; slot >= 0) {
          StoreInCache(v[i], slot + in_slot);
        }
      }
    }
  }

  __device__ __forceinline__ void StoreInCache(const float4& v, int64_t at) const {
    if (!a_.cache_is_e4m3) return StoreFour<T>(v, a_.cache, at, a_.y_f32);
    const float values[4] = {v.x, v.y, v.z, v.w};
    RoundAndStoreE4m3<T, 4>(values, static_cast<uint8_t*>(a_.cache) + at);
  }

  template <bool kSimple>
  __device__ __forceinline__ float4 Activate(const float4& v) {
    const Activation activation = a_.activation;
    if (S::kAdds || activation == Activation::kNone) return v;
    const auto of = [&](float x) {
      if constexpr (!kSimple) return Activated(activation, x);
      return activation == Activation::kRelu ? Activated(Activation::kRelu, x) : QuickGelu(x);
    };
    return {of(v.x), of(v.y), of(v.z), of(v.w)};
  }

  // First half of a split RMSNorm: writes v * gamma and, for each row, the sum of v^2 over the
  // columns of the tile. v[i] has this thread's outputs in row first + i * step_. All 16 lanes of a
  // row participate in the shuffles, because a tile has 64 columns and `columns` is a multiple of
  // 64.
  template <int kAtOnce>
  __device__ __forceinline__ void BeginNextNorm(int first, const float4 (&v)[kAtOnce]) const {
    float squares[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      squares[i] = (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    constexpr int kLanes = S::kChannels / 4;
    const uint32_t lanes = threadIdx.x % 32 < kLanes ? 0xffffu : 0xffff0000u;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) squares[i] += __shfl_xor_sync(lanes, squares[i], step);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t row = first_ + first + i * step_;
      if (first + i * step_ >= rows_) break;
      const float4 scaled = {v[i].x * gamma_.x, v[i].y * gamma_.y, v[i].z * gamma_.z,
                             v[i].w * gamma_.w};
      StoreFour<T>(scaled, a_.next_scaled, row * a_.next_stride + column_, false);
      if (channel_ == 0) {
        const int parts = a_.columns / S::kChannels;
        a_.next_squares[row * parts + column_ / S::kChannels] = squares[i];
      }
    }
  }

  // v[i] = alpha[i] * scale * (partial sums of all CTAs, added in rank order, + LoRA term) + bias,
  // for kAtOnce rows, every step_-th one from `first` on; scale is 1 with 16-bit weights. The
  // partial sums of row i begin at[i] bytes after `sums` in shared memory.
  template <int kAtOnce>
  __device__ __forceinline__ void Sum(uint32_t sums, const uint32_t (&at)[kAtOnce],
                                      const float (&alpha)[kAtOnce], const float4& scale,
                                      const float4& bias, int first, int half,
                                      float4 (&v)[kAtOnce]) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) v[i] = LoadFloat4(sums + at[i]);
#pragma unroll 1
    for (int block = 1; block < share_.splits; ++block) {
      sums += block_bytes_;
      float4 part[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) part[i] = LoadFloat4(sums + at[i]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[i] = {v[i].x + part[i].x, v[i].y + part[i].y, v[i].z + part[i].z, v[i].w + part[i].w};
      }
    }
    if constexpr (S::kLora && !S::kOneLora) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + i * step_ < rows_ ? first + i * step_ : first;
        const float4 term = LoadFloat4(terms_ + (row * S::kChannels + half * S::kChannels / 2) * 4);
        v[i] = {v[i].x + term.x, v[i].y + term.y, v[i].z + term.z, v[i].w + term.w};
      }
    }
    if constexpr (S::kBytes) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        v[i] = {v[i].x * scale.x, v[i].y * scale.y, v[i].z * scale.z, v[i].w * scale.w};
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      v[i] = {fmaf(alpha[i], v[i].x, bias.x), fmaf(alpha[i], v[i].y, bias.y),
              fmaf(alpha[i], v[i].z, bias.z), fmaf(alpha[i], v[i].w, bias.w)};
    }
  }

  const SplitKArgs& a_;
  const SplitKWork<S>& share_;
  int channel_, column_;               // first of the four columns: within the tile, in y
  int row_, rows_, step_;              // first row, end and stride, within the rows of the CTA
  int first_;                          // first row of y that the CTA finishes
  uint32_t sums_, residual_, scales_;  // shared memory addresses for that row
  uint32_t terms_;                     // kEach: shared memory address of the LoRA terms
  int block_bytes_;                    // bytes between the partial sums of two CTAs
  float4 bias_, up_bias_, gamma_;
  float4 scale_, up_scale_;  // S::kBytes: scales of the channels
};

// Offset of a row's slot in the KV cache, in elements; -1 if the row is not stored.
__device__ __forceinline__ int64_t RowSlot(const SplitKArgs& a, int row) {
  const int slot = a.slots[row];
  return slot < 0 ? -1 : slot / a.page_size * a.page_elements + slot % a.page_size * a.head_dim;
}

}  // namespace quintet::cuda
