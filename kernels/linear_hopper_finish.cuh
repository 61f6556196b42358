// What becomes of a tile's sums in the kernel of linear_hopper.cuh, and what its two sides share:
// arguments, shared memory, a block's share of the work.
#pragma once

#include "kernels/cluster.cuh"
#include "kernels/linear_product.cuh"
#include "kernels/wgmma.cuh"

namespace quintet::cuda {

constexpr int kHopperDepth = 64;  // values of k in a stage: rows of 128 bytes
constexpr int kHopperMostStages = 16;
// Multiplications of more than 64 rows that this kernel takes.
constexpr int64_t kHopperMostProducts = int64_t{1} << 29;
constexpr int kHopperMostSplits = 8;  // blocks that every card takes in a cluster

struct HopperRowsArgs {
  const float* bias;     // [n] f32, or null
  const void* out_bias;  // [n] of y's type, or null
  const void* residual;  // of y's type, or null
  void* y;
  int64_t residual_stride, y_stride;
  int rows, columns, k;  // of y, of y, of x
  int up_offset;         // gated: rows of W from a gate channel to its up channel; or 0
  int stages;
  float alpha;
  Activation activation;
  bool y_f32;  // otherwise of the weight's type

  // Keys and values to their slots (KvOutput), or null: columns from `inner` on. Heads, keys' then
  // values', are equally far apart.
  void* cache;
  const int32_t* slots;
  int inner, head_dim, page_size;
  int64_t page_elements, layer_offset, head_stride;

  // What the product before left of each row's norm (x_squares), or null.
  const float* squares;
  int square_parts;
  float inverse_k, eps;
  // What this one leaves for the next norm (NormOutput): a tile a part; or null.
  const float* next_gamma;
  void* next_scaled;
  float* next_squares;
  int64_t next_stride;
};

// Kernels by what they are for. kSmall: one thread copies. kLarge, for large weights: one copies W,
// another x. kAdds: as kLarge, and only for what adds f32 rows to y and does nothing else with the
// sums: code that runs once is waited for.
enum class HopperKind { kSmall, kLarge, kAdds };

// kHalves_: for halves of norms (x_squares, next_norm).
template <int kRowsOfTile, bool kHalves_, HopperKind kKind>
struct HopperRowsSizes {
  static constexpr int kRows = kRowsOfTile, kChannels = 64;
  static constexpr bool kHalves = kHalves_, kAdds = kKind == HopperKind::kAdds;
  static constexpr bool kTwoCopy = kKind != HopperKind::kSmall;       // threads
  static constexpr int kThreads = kWarpgroup + (kTwoCopy ? 64 : 32);  // that multiply; and copy
  static constexpr int kWBytes = kChannels * 128, kXBytes = kRows * 128;
  static constexpr int kStageBytes = kWBytes + kXBytes;
  // From a row of sums to the next: stores of fragments meet no bank twice.
  static constexpr int kPitchBytes = (kChannels + 4) * 4;
};

// What lies where in a block's shared memory, in bytes. The ring is from 0 on, and the block's own
// sums over it when it has been read.
struct HopperRowsLayout {
  int each;      // rows that a block of the cluster finishes
  int received;  // sums of these rows from every block of a cluster of several
  int residual;
  int tail;
  int scales;  // of the rows that this block finishes
  int bytes;

  template <typename S>
  __host__ __device__ static HopperRowsLayout Of(const HopperRowsArgs& a, int splits) {
    const int rows = a.rows < S::kRows ? a.rows : S::kRows;
    const int ring = a.stages * S::kStageBytes, sums = S::kRows * S::kPitchBytes;
    HopperRowsLayout l;
    l.each = (rows + splits - 1) / splits;
    l.received = ring > sums ? ring : sums;
    l.residual = l.received + (splits > 1 ? splits * l.each * S::kPitchBytes : 0);
    l.tail = l.residual + (a.residual != nullptr ? l.each * S::kPitchBytes : 0);
    l.scales = l.tail + static_cast<int>(sizeof(Tail)) + S::kRows * 8;
    l.bytes = l.scales + l.each * 4;
    return l;
  }
  struct Tail {
    uint64_t full[kHopperMostStages], empty[kHopperMostStages], received;
    int64_t row_slot[1];  // [kRows]: a row's place in the cache; negative: nowhere
  };
};

__device__ __forceinline__ void CopyAsync8(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" : : "r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void WaitForKernelsBefore() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ float LoadFloat(uint32_t shared) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(shared) : "memory");
  return v;
}
__device__ __forceinline__ void StoreFloat(uint32_t shared, float v) {
  asm volatile("st.shared.f32 [%0], %1;" : : "r"(shared), "f"(v) : "memory");
}
// Four values of f32 or T.
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

// A block's work: the tile and its share of k.
template <typename S>
struct HopperShare {
  int splits, rank;
  int channels;  // of y in a tile
  int column;    // first of the tile
  int row, rows;
  int begin, count;  // stages

  __device__ __forceinline__ explicit HopperShare(const HopperRowsArgs& a)
      : splits(ClusterSize()),
        rank(ClusterRank()),
        channels(!S::kAdds && a.up_offset > 0 ? S::kChannels / 2 : S::kChannels),
        column(static_cast<int>(blockIdx.x) / splits * channels),
        row(static_cast<int>(blockIdx.y) * S::kRows),
        rows(min(S::kRows, a.rows - row)) {
    const int all = (a.k + kHopperDepth - 1) / kHopperDepth;
    begin = all * rank / splits;
    count = all * (rank + 1) / splits - begin;
  }
};

// What becomes of a tile's sums, in a thread: four neighbouring channels of every so many of the
// block's rows.
template <typename T, typename S>
class HopperRowsFinish {
 public:
  __device__ __forceinline__ HopperRowsFinish(const HopperRowsArgs& a, const HopperShare<S>& share,
                                              const HopperRowsLayout& layout, uint32_t shared,
                                              int thread)
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
    bias_ = BiasAt(column_);
    up_bias_ = Gated() ? BiasAt(a.up_offset + column_) : float4{};
    if (Begins()) {
      gamma_ = *reinterpret_cast<const float4*>(a.next_gamma + column_);
    }
  }

  // After the wait for inputs.
  __device__ __forceinline__ void AskForResidual() {
    if (!Adds()) return;
    for (int row = row_; row < rows_; row += step_) {
      const int64_t at = (first_ + row) * a_.residual_stride + column_;
      const uint32_t to = residual_ + row * S::kPitchBytes;
      if (F32()) {
        CopyAsync16(to, static_cast<const float*>(a_.residual) + at, true);
      } else {
        CopyAsync8(to, static_cast<const T*>(a_.residual) + at);
      }
    }
  }

  // After it, too: what the products of the rows are scaled by where the product before began their
  // norm. Eight lanes a row, their loads under way together; past the end the last row again.
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

  // `row_slot` of the tile's rows.
  __device__ __forceinline__ void Run(const int64_t* row_slot) {
    CommitCopies();
    WaitForCopies<0>();
    if (S::kAdds || a_.activation == Activation::kNone || a_.activation == Activation::kRelu ||
        a_.activation == Activation::kGeluTanh) {
      FinishRows<4, true>(row_slot);
    } else {
      FinishRows<2, false>(row_slot);  // their code is long
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

  // kAtOnce rows at a time: one after the other they would wait for shared memory each.
  template <int kAtOnce, bool kSimple>
  __device__ __forceinline__ void FinishRows(const int64_t* row_slot) {
    const bool cached = !S::kAdds && column_ >= a_.inner;
    int64_t in_slot = 0;  // of this thread's key or value
    if (cached) {
      const int within = column_ - a_.inner;
      in_slot = a_.layer_offset + within / a_.head_dim * a_.head_stride + within % a_.head_dim;
    }
#pragma unroll 1
    for (int first = row_; first < rows_; first += kAtOnce * step_) {
      uint32_t at[kAtOnce];  // past the end: of another row of this thread
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
      Sum(sums_, at, alpha, bias_, v);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[i] = Activate<kSimple>(v[i]);
      if (Gated()) {
        float4 up[kAtOnce];
        Sum(sums_ + S::kChannels / 2 * 4, at, alpha, up_bias_, up);
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
          StoreFour<T>(v[i], a_.cache, slot + in_slot, a_.y_f32);
        }
      }
    }
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

  // Of rows first, first + step_, .., whose values are v. The 16 lanes of a row are here together:
  // there are no columns past the end.
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

  // alpha * (the blocks' sums in their order) + bias, of rows at `at`.
  template <int kAtOnce>
  __device__ __forceinline__ void Sum(uint32_t sums, const uint32_t (&at)[kAtOnce],
                                      const float (&alpha)[kAtOnce], const float4& bias,
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
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      v[i] = {fmaf(alpha[i], v[i].x, bias.x), fmaf(alpha[i], v[i].y, bias.y),
              fmaf(alpha[i], v[i].z, bias.z), fmaf(alpha[i], v[i].w, bias.w)};
    }
  }

  const HopperRowsArgs& a_;
  const HopperShare<S>& share_;
  int channel_, column_;               // in the tile, of y
  int row_, rows_, step_;              // of the block's share
  int first_;                          // row of y with which the share begins
  uint32_t sums_, residual_, scales_;  // of the share's first row
  int block_bytes_;                    // from a block's sums to the next one's
  float4 bias_, up_bias_, gamma_;
};

// A row's place in the cache; negative: nowhere.
__device__ __forceinline__ int64_t RowSlot(const HopperRowsArgs& a, int row) {
  const int slot = a.slots[row];
  return slot < 0 ? -1 : slot / a.page_size * a.page_elements + slot % a.page_size * a.head_dim;
}

}  // namespace quintet::cuda
