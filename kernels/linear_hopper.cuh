// Products of tens to some hundreds of rows on Hopper: the kernel, and what its launcher and it
// share.
#pragma once

#include "kernels/bulk_copy.cuh"
#include "kernels/cluster.cuh"
#include "kernels/linear_product.cuh"
#include "kernels/wgmma.cuh"

namespace quintet::cuda {

// How a product is cut: tiles of 64 channels by `rows` rows (16, 32 or 64), each summed by `splits`
// blocks (a cluster) over their shares of k, through a ring of `stages`.
struct HopperPlan {
  int rows, splits, stages;
};

constexpr int kHopperDepth = 64;  // values of k in a stage: rows of 128 bytes
constexpr int kHopperMostStages = 16;
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

// Boxes of W and of x.
struct HopperRowsMaps {
  CUtensorMap w, x;
};

template <int kRowsOfTile>
struct HopperRowsSizes {
  static constexpr int kRows = kRowsOfTile, kChannels = 64;
  static constexpr int kThreads = kWarpgroup + 32;  // that multiply, and that copy
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

// Shared memory to a block of the cluster, whose `barrier` learns of its bytes.
__device__ __forceinline__ void CopyToBlock(uint32_t there, uint32_t from, int bytes,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];"
      :
      : "r"(there), "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void CopyAsync8(uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" : : "r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void WaitForKernelsBefore() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ float4 LoadFloat4(uint32_t shared) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(shared)
               : "memory");
  return v;
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
        channels(a.up_offset > 0 ? S::kChannels / 2 : S::kChannels),
        column(static_cast<int>(blockIdx.x) / splits * channels),
        row(static_cast<int>(blockIdx.y) * S::kRows),
        rows(min(S::kRows, a.rows - row)) {
    const int all = (a.k + kHopperDepth - 1) / kHopperDepth;
    begin = all * rank / splits;
    count = all * (rank + 1) / splits - begin;
  }
};

// Asks for boxes of a block's share; one thread.
template <typename S>
class HopperRowsCopier {
  using Tail = HopperRowsLayout::Tail;

 public:
  __device__ __forceinline__ HopperRowsCopier(const HopperRowsArgs& a, const HopperRowsMaps& maps,
                                              const HopperShare<S>& share, uint32_t ring,
                                              Tail& tail)
      : a_(a), maps_(maps), share_(share), ring_(ring), tail_(tail) {}

  // What no kernel writes: the first stages of W. `received_bytes` are those of sums.
  __device__ __forceinline__ void Begin(int received_bytes) {
    AskForMap(maps_.w);
    AskForMap(maps_.x);
    for (int stage = 0; stage < a_.stages; ++stage) {
      InitBarrier(SharedAddress(&tail_.full[stage]), 1);
      InitBarrier(SharedAddress(&tail_.empty[stage]), kWarpgroup / 32);
    }
    InitBarrier(SharedAddress(&tail_.received), 1);
    ShowBarriers();
    for (int i = 0; i < min(share_.count, a_.stages); ++i) CopyWeights(i, i);
    ArriveExpecting(SharedAddress(&tail_.received), received_bytes);
  }

  __device__ __forceinline__ void Run() {
    WaitForKernelsBefore();
    const int first = min(share_.count, a_.stages);
    for (int i = 0; i < first; ++i) CopyRows(i, i);
    LetNextBegin();
    int stage = 0;
    uint32_t parity = 0;
    for (int i = first; i < share_.count; ++i) {
      Wait(SharedAddress(&tail_.empty[stage]), parity);
      CopyWeights(i, stage);
      CopyRows(i, stage);
      if (++stage == a_.stages) stage = 0, parity ^= 1;
    }
  }

 private:
  __device__ __forceinline__ void CopyWeights(int i, int stage) {
    const uint32_t full = SharedAddress(&tail_.full[stage]), to = ring_ + stage * S::kStageBytes;
    const int k = (share_.begin + i) * kHopperDepth;
    ArriveExpecting(full, S::kStageBytes);
    CopyBox(to, maps_.w, k, 0, share_.column, full);
    if (a_.up_offset > 0) {
      CopyBox(to + S::kWBytes / 2, maps_.w, k, 0, a_.up_offset + share_.column, full);
    }
  }
  __device__ __forceinline__ void CopyRows(int i, int stage) {
    CopyBox(ring_ + stage * S::kStageBytes + S::kWBytes, maps_.x, (share_.begin + i) * kHopperDepth,
            0, share_.row, SharedAddress(&tail_.full[stage]));
  }

  const HopperRowsArgs& a_;
  const HopperRowsMaps& maps_;
  const HopperShare<S>& share_;
  const uint32_t ring_;
  Tail& tail_;
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
    rows_ = column_ < a.columns ? min(layout.each, share.rows - begin) : 0;
    step_ = kWarpgroup / vectors;
    first_ = share.row + begin;
    sums_ = shared + channel_ * 4 + (share.splits > 1 ? layout.received : begin * S::kPitchBytes);
    block_bytes_ = layout.each * S::kPitchBytes;
    residual_ = shared + layout.residual + channel_ * 4;
    scales_ = shared + layout.scales;
    bias_ = BiasAt(column_);
    up_bias_ = a.up_offset > 0 ? BiasAt(a.up_offset + column_) : float4{};
    if (a.next_gamma != nullptr) {
      gamma_ = *reinterpret_cast<const float4*>(a.next_gamma + column_);
    }
  }

  // After the wait for inputs.
  __device__ __forceinline__ void AskForResidual() {
    if (a_.residual == nullptr) return;
    for (int row = row_; row < rows_; row += step_) {
      const int64_t at = (first_ + row) * a_.residual_stride + column_;
      const uint32_t to = residual_ + row * S::kPitchBytes;
      if (a_.y_f32) {
        CopyAsync16(to, static_cast<const float*>(a_.residual) + at, true);
      } else {
        CopyAsync8(to, static_cast<const T*>(a_.residual) + at);
      }
    }
  }

  // After it, too: what the products of the rows are scaled by where the product before began their
  // norm. Eight lanes a row, and all their loads at once; past the end the last row again.
  __device__ __forceinline__ void FinishNorm(int thread, int rows) const {
    if (a_.squares == nullptr || rows <= 0) return;
    constexpr int kLanes = 8, kAtOnce = kWarpgroup / kLanes,
                  kEach = (S::kRows + kAtOnce - 1) / kAtOnce;
    float sums[kEach] = {};
    const float* from[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = min(thread / kLanes + i * kAtOnce, rows - 1);
      from[i] = a_.squares + (first_ + row) * a_.square_parts;
    }
#pragma unroll 4
    for (int part = thread % kLanes; part < a_.square_parts; part += kLanes) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) sums[i] += from[i][part];
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
    if (a_.activation == Activation::kNone || a_.activation == Activation::kRelu ||
        a_.activation == Activation::kGeluTanh) {
      FinishRows<4, true>(row_slot);
    } else {
      FinishRows<2, false>(row_slot);  // their code is long
    }
  }

 private:
  __device__ __forceinline__ float4 BiasAt(int at) {
    if (column_ >= a_.columns) return {};
    if (a_.bias != nullptr) return *reinterpret_cast<const float4*>(a_.bias + at);
    if (a_.out_bias == nullptr) return {};
    const int bytes = a_.y_f32 ? 4 : 2;
    return LoadFour<T>(static_cast<const char*>(a_.out_bias) + at * bytes, a_.y_f32);
  }

  // kAtOnce rows at a time: one after the other they would wait for shared memory each.
  template <int kAtOnce, bool kSimple>
  __device__ __forceinline__ void FinishRows(const int64_t* row_slot) {
    int64_t in_slot = 0;  // of this thread's key or value
    if (column_ >= a_.inner) {
      const int within = column_ - a_.inner;
      in_slot = a_.layer_offset + within / a_.head_dim * a_.head_stride + within % a_.head_dim;
    }
    const bool cached = column_ >= a_.inner;
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
        if (a_.squares != nullptr) alpha[i] *= LoadFloat(scales_ + (row < rows_ ? row : first) * 4);
      }
      float4 v[kAtOnce];
      Sum(sums_, at, alpha, bias_, v);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[i] = Activate<kSimple>(v[i]);
      if (a_.up_offset > 0) {
        float4 up[kAtOnce];
        Sum(sums_ + S::kChannels / 2 * 4, at, alpha, up_bias_, up);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          v[i] = {v[i].x * up[i].x, v[i].y * up[i].y, v[i].z * up[i].z, v[i].w * up[i].w};
        }
      }
      if (a_.residual != nullptr) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const float4 r = LoadFour<T>(__cvta_shared_to_generic(residual_ + at[i]), a_.y_f32);
          v[i] = {v[i].x + r.x, v[i].y + r.y, v[i].z + r.z, v[i].w + r.w};
        }
      }
      if (a_.next_gamma != nullptr) BeginNextNorm(first, v);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + i * step_;
        if (row >= rows_) break;
        if (!cached) {
          StoreFour<T>(v[i], a_.y, (first_ + row) * a_.y_stride + column_, a_.y_f32);
        } else if (const int64_t slot = row_slot[first_ - share_.row + row]; slot >= 0) {
          StoreFour<T>(v[i], a_.cache, slot + in_slot, a_.y_f32);
        }
      }
    }
  }

  template <bool kSimple>
  __device__ __forceinline__ float4 Activate(const float4& v) {
    const Activation activation = a_.activation;
    if (activation == Activation::kNone) return v;
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

// c += W x^T over a block's share of k, in a warpgroup; c [64 channels x kRows].
template <typename T, typename S>
__device__ __forceinline__ void SumShare(const HopperShare<S>& share, int stages, uint32_t ring,
                                         HopperRowsLayout::Tail& tail,
                                         float (&c)[S::kRows / 8][4]) {
  int stage = 0, before = 0;
  uint32_t parity = 0;
  Pin(c);
  for (int i = 0; i < share.count; ++i) {
    Wait(SharedAddress(&tail.full[stage]), parity);
    const uint32_t at = ring + stage * S::kStageBytes;
    const uint64_t w = Describe(at, 16);
    const uint64_t x = Describe(at + S::kWBytes, 16);
    BeginProducts();
#pragma unroll
    for (int part = 0; part < kHopperDepth / 16; ++part) {
      Wgmma<T>(c, w + part * 2, x + part * 2, true);
    }
    CommitProducts();
    WaitForProducts<1>();
    if (i > 0 && threadIdx.x % 32 == 0) Arrive(SharedAddress(&tail.empty[before]));
    before = stage;
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  WaitForProducts<0>();
  Pin(c);
}

// What: y = activation(alpha x W^T + bias) [* up] + residual; or keys and values to their slots.
// Shapes: x [rows, k] T, W [n, k] T, y [rows, columns] f32 or T; k a multiple of 8, columns and
// what is between rows multiples of 4.
// Math: products on tensor cores, f32 sums: each block's share of k in ascending order, then the
// blocks' in theirs, the same bits from run to run.
// Map: channels of W are the rows of the tensor cores' tiles (64 for each warpgroup; gated: a half
// of gate channels and the up channels that belong to them), rows of x their columns. A cluster of
// blocks owns a tile of y, each block a share of k. One thread asks for boxes of 64 values of k
// into a ring: W's first ones before the kernel waits for its inputs, x's after that. In the end
// every block sends its sums to those that finish their rows, a share of the tile's each.
// Bound: W read once: n k 2 bytes over 4.3 TB/s on an H200; x once for every tile of channels, from
// the L2 cache. In a step, the chain of kernels.
// Spec: tests/kernels/linear_test.cc.
//
// Versions on an H200, bf16, us of a product among others of its kind, weights from memory, at 32 |
// 128 rows. T5-base: 768x768 with a residual, 2304x768, 3072x768 with ReLU, 768x3072 with a
// residual; by cuBLASLt 4.0 4.1 4.3 7.0 | 4.1 4.3 4.7 7.3 and 1.4 for keys and values after the
// second.
//   1 tiles of 64 or 128 channels by 8 to 128 rows, 1 to 8 blocks a cluster, the best of all plans:
//     predicted 3 to 3.5 each, seen 2.2 2.7 3.2 3.0 | 2.8 4.1 5.0 5.0: a row was finished after the
//     other, which is why tiles of many rows were slow.
//   2 four rows at once: predicted 2 less for a tile of 128 rows, seen 1.5 less; best plans 2.3 2.8
//     3.1 3.2 | 2.8 3.6 4.0 4.9. Tiles of 128 or 192 channels or of 128 rows are not better where
//     this is better than cuBLASLt, and gone. GELU without a branch: 3072x768 5.4 before, 4.5 now.
// Flan-T5-XL at 32 | 64 rows: 6144x2048 8.1 | 9.1, cuBLASLt 9.5 | 9.3; 2048x2048 3.9 | 4.4 of 6.2 |
// 6.1; gated 10240x2048 14.1 | 15.4 of 14.9 | 16.5; 2048x5120 7.9 | 8.9 of 10.5 | 10.7. At 128 rows
// 2048x2048 takes 6.4 of 7.0, 2048x5120 11.4 of 11.8, the others longer than with cuBLASLt.
// A recorded step by bench_steps_gpu without and with these kernels, at 16 | 32 | 64 | 128 rows:
// T5-base 444 | 545 | 704 | 878, then 376 | 436 | 594 | 781; GPT-2 369 | 421 | 560 | 722, then 320
// | 333 | 453 | 613; Flan-T5-XL 1762 | 2120 | 2612 | 3528, then 1529 | 1787 | 2334 | 3468.
// Rejected: the next kernel let in before the wait (T5-base 453 | 806 at 32 | 128 rows), after the
// last copy (437 | 792), at the end (484 | 821).
template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, 2)
    HopperRowsKernel(const __grid_constant__ HopperRowsArgs a,
                     const __grid_constant__ HopperRowsMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const HopperShare<S> share(a);
  const HopperRowsLayout layout = HopperRowsLayout::Of<S>(a, share.splits);
  auto& tail = *reinterpret_cast<HopperRowsLayout::Tail*>(memory + layout.tail);
  const bool copies = thread == kWarpgroup;
  const int finishes = max(0, min(layout.each, share.rows - share.rank * layout.each));
  HopperRowsCopier<S> copier(a, maps, share, shared, tail);
  if (copies) copier.Begin((share.splits - 1) * finishes * S::kPitchBytes);
  __syncthreads();
  ArriveAtCluster();  // the barriers are there

  if (warp == kWarpgroup / 32) {
    if (copies) copier.Run();
    __syncwarp();
    WaitForCluster();
  } else {
    HopperRowsFinish<T, S> finish(a, share, layout, shared, thread);
    WaitForKernelsBefore();
    finish.AskForResidual();
    finish.FinishNorm(thread, finishes);
    if (a.cache != nullptr && thread < share.rows) {
      tail.row_slot[thread] = RowSlot(a, share.row + thread);
    }
    float sums[S::kRows / 8][4] = {};
    SumShare<T, S>(share, a.stages, shared, tail, sums);

    // Nobody reads the ring any more once all are here: sums [row][channel] go there, those of the
    // rows that this block finishes to where the other blocks send theirs.
    SyncThreads(1, kWarpgroup);
    const int first_own = share.splits > 1 ? share.rank * layout.each : S::kRows;
    const int channel = warp * 16 + thread % 32 / 4;
#pragma unroll
    for (int j = 0; j < S::kRows / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = j * 8 + thread % 4 * 2 + e % 2;
        const bool own = row >= first_own && row < first_own + layout.each;
        float* to =
            reinterpret_cast<float*>(memory + (own ? layout.received : 0) + row * S::kPitchBytes);
        to[channel + e / 2 * 8] = sums[j][e];
      }
    }
    if (share.splits > 1) ShowToAsyncProxy();
    SyncThreads(1, kWarpgroup);
    WaitForCluster();
    if (share.splits > 1) {
      if (thread < share.splits && thread != share.rank) {
        const int begin = thread * layout.each;
        const int rows = min(layout.each, share.rows - begin);
        const int to = layout.received + share.rank * layout.each * S::kPitchBytes;
        if (rows > 0) {
          CopyToBlock(InBlock(shared + to, thread), shared + begin * S::kPitchBytes,
                      rows * S::kPitchBytes, InBlock(SharedAddress(&tail.received), thread));
        }
      }
      Wait(SharedAddress(&tail.received), 0);
    }
    finish.Run(tail.row_slot);
  }
  ArriveAtCluster();
  WaitForCluster();  // others may still be reading this block's sums
#endif
}

// The product by this plan; RunHopperRows says which it takes.
void LaunchHopperRows(const LinearArgs& args, const HopperPlan& plan, Stream& stream);

}  // namespace quintet::cuda
