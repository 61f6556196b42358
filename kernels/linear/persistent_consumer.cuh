// Consumer warpgroup of the persistent GEMM kernel: mainloop with accumulators in registers, and
// epilogue.
#pragma once

#include "kernels/linear/persistent.cuh"

namespace quintet::cuda {

// x = x / (1 + 2^x_exponent) and y = y / (1 + 2^y_exponent), with a single reciprocal for both.
__device__ __forceinline__ void DivideTwo(float& x, float& y, float x_exponent, float y_exponent) {
  constexpr float kMost = 62.0f;  // the product of two stays finite
  const float x_divisor = 1.0f + Exp2(fminf(x_exponent, kMost));
  const float y_divisor = 1.0f + Exp2(fminf(y_exponent, kMost));
  const float inverse = Reciprocal(x_divisor * y_divisor);
  x *= y_divisor * inverse;
  y *= x_divisor * inverse;
}

// x = A(x) and y = A(y), where A is the activation kOf. For kGeluTanh the formula is that of
// QuickGelu (gemm.cuh).
template <Activation kOf>
__device__ __forceinline__ void ActivateTwo(float& x, float& y) {
  if constexpr (kOf == Activation::kGeluTanh) {
    DivideTwo(x, y, QuickGeluExponent(x), QuickGeluExponent(y));
  } else if constexpr (kOf == Activation::kSilu) {
    constexpr float kLog2E = 1.4426950408889634f;
    DivideTwo(x, y, -kLog2E * x, -kLog2E * y);
  } else {
    x = Activated(kOf, x);
    y = Activated(kOf, y);
  }
}

// A consumer warpgroup.
template <typename S>
class PersistentConsumer {
  using T = typename S::T;

 public:
  __device__ __forceinline__ PersistentConsumer(const PersistentArgs& a, PersistentSmem<S>& memory,
                                                int group)
      : a_(a),
        memory_(memory),
        group_(group),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32 % 4, 0)) {}

  __device__ __forceinline__ void Run() {
    const PersistentTileScheduler<S> tiles(a_);
    const int steps = (a_.k + S::kDepth - 1) / S::kDepth;
    int turn = 0;
    for (int tile = tiles.first(); tile < tiles.count(); tile += tiles.stride(), ++turn) {
      if (S::kPingPong && turn % S::kGroups != group_) {
        state_.Skip(steps);  // the other warpgroup's tile
        continue;
      }
      const int2 at = tiles.At(tile);
      row_ = at.x + (S::kPingPong ? 0 : group_ * 64) + warp_ * S::kBoxRows;
      column_ = at.y;
      float w_scale = 0.0f;
      if constexpr (S::kScaled) w_scale = LoadScales();
      if (S::kPingPong && turn > 0) {
        NamedBarrierSync(MayMultiply(turn), S::kGroups * kWarpgroup);
      }
      const bool last = tile + tiles.stride() >= tiles.count();
      Multiply(steps, S::kPingPong && !last ? MayMultiply(turn + 1) : 0);
      if constexpr (S::kScaled) ShareScales(w_scale);
      Finish();
    }
  }

 private:
  // Rows of y are computed in fragments of 64 rows, the M side of a wgmma.
  static constexpr int kFragments = S::kGroupRows / 64;

  // Named barrier for kPingPong. The warpgroup that computes the tile of turn `turn` waits at it
  // until the other warpgroup has waited for all stages of its own tile. Otherwise a warpgroup
  // could wait for an mbarrier phase that has not begun. Such a phase has the same parity as the
  // last completed phase, so the wait would end too early.
  __device__ __forceinline__ static int MayMultiply(int turn) {
    return 1 + S::kGroups + turn % S::kGroups;
  }

  // Releases a pipeline stage, so that the producers of the cluster may overwrite it.
  __device__ __forceinline__ void Release(int stage) {
    const uint32_t empty = SharedAddress(&memory_.empty[stage]);
    if constexpr (S::kCluster == 1) {
      if (lane_ == 0) BarrierArrive(empty);
    } else {
      if (lane_ < S::kCluster) ArriveInCluster(InBlock(empty, lane_));
    }
  }

  // Loads the scales of a tile. Called before Multiply, so that the loads can overlap the GEMM.
  // Sets x_scales_ to alpha times the scales of the rows of x that belong to this thread. Returns
  // the scale of one row of W, for ShareScales.
  __device__ __forceinline__ float LoadScales() {
    static_assert(kWarpgroup % S::kChannels == 0);
#pragma unroll
    for (int i = 0; i < kFragments * 2; ++i) {
      const int row = row_ + i / 2 * 64 + i % 2 * 8 + lane_ / 4;
      x_scales_[i / 2][i % 2] = a_.alpha * a_.x_scales[min(row, a_.rows - 1)];
    }
    const int channel = static_cast<int>(threadIdx.x) % S::kChannels;
    const int column = min(column_ + channel % S::kColumns, a_.columns - 1);
    const int first = channel / S::kColumns * a_.columns;  // of the gate or the up half
    return __ldg(a_.w_scales + first + column);
  }

  // Passes the scales of W to all threads of the warpgroup.
  __device__ __forceinline__ void ShareScales(float w_scale) {
    NamedBarrierSync(1 + group_, kWarpgroup);  // all have finished the tile before
    memory_.w_scales[group_][threadIdx.x % S::kChannels] = w_scale;
    NamedBarrierSync(1 + group_, kWarpgroup);
  }

  // Mainloop: sums_ = x W^T of the tile, without scales. Arrives at the named barrier `next`,
  // unless it is 0, once it has waited for all stages.
  __device__ __forceinline__ void Multiply(int steps, int next) {
    const int first_row = S::kPingPong ? 0 : group_ * 64;
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      BarrierWait(SharedAddress(&memory_.full[state_.stage]), state_.parity);
      const uint32_t x = SharedAddress(memory_.x[state_.stage]) + first_row * S::kRowBytes;
      const uint64_t w = MakeSmemDescriptor(SharedAddress(memory_.w[state_.stage]), 16);
      WarpgroupArrive();
#pragma unroll
      for (int part = 0; part < S::kRowBytes / 32; ++part) {
#pragma unroll
        for (int m = 0; m < kFragments; ++m) {
          const uint64_t rows = MakeSmemDescriptor(x + m * 64 * S::kRowBytes, 16);
          const bool accumulate = step > 0 || part > 0;
          if constexpr (S::kScaled) {
            ByteWgmma(sums_[m], rows + part * 2, w + part * 2, accumulate);
          } else {
            Wgmma<T>(sums_[m], rows + part * 2, w + part * 2, accumulate);
          }
        }
      }
      WarpgroupCommitBatch();
      if (step > 0) {
        WarpgroupWait<1>();
        Release(before);
      }
      before = state_.stage;
      state_.Advance();
    }
    if (next != 0) NamedBarrierArrive(next, S::kGroups * kWarpgroup);
    WarpgroupWait<0>();
#pragma unroll
    for (int m = 0; m < kFragments; ++m) WarpgroupFenceOperand(sums_[m]);
    Release(before);
  }

  __device__ __forceinline__ void Finish() {
    if constexpr (!S::kStaged) {
#pragma unroll
      for (int m = 0; m < kFragments; ++m) StoreF32(m);
      return;
    }
    if constexpr (S::kScattered) return FinishAs<Activation::kNone>();
    switch (a_.activation) {
      case Activation::kNone:
        return FinishAs<Activation::kNone>();
      case Activation::kRelu:
        return FinishAs<Activation::kRelu>();
      case Activation::kGeluTanh:
        return FinishAs<Activation::kGeluTanh>();
      case Activation::kGeluErf:
        return FinishAs<Activation::kGeluErf>();
      case Activation::kSilu:
        return FinishAs<Activation::kSilu>();
      case Activation::kTanh:
        return FinishAs<Activation::kTanh>();
    }
  }

  // Epilogue for y of f32: y = x W^T + bias + residual, stored from the accumulators. Four lanes
  // write the 32 bytes of eight columns of a row. The residual of kAtOnce groups of eight columns
  // is loaded before any of it is used.
  __device__ __forceinline__ void StoreF32(int m) {
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int first = 0; first < S::kColumns / 8; first += kAtOnce) {
      float2 added[kAtOnce][2] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce * 2; ++i) {
        const int64_t row = row_ + m * 64 + i % 2 * 8 + lane_ / 4;
        const int column = column_ + ColumnOf(first + i / 2);
        if (a_.residual != nullptr && row < a_.rows && column < a_.columns) {
          added[i / 2][i % 2] =
              *reinterpret_cast<const float2*>(a_.residual + row * a_.residual_stride + column);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = column_ + ColumnOf(first + i);
        float v[4];
        Values<Activation::kNone>(m, first + i, v);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int64_t row = row_ + m * 64 + half * 8 + lane_ / 4;
          if (row >= a_.rows || column >= a_.columns) continue;
          *reinterpret_cast<float2*>(static_cast<float*>(a_.y) + row * a_.y_stride + column) = {
              v[half * 2] + added[i][half].x, v[half * 2 + 1] + added[i][half].y};
        }
      }
    }
  }

  // Epilogue: each warp writes its 16 rows of y in boxes of 64 columns (128 bytes). Box i goes
  // through staging buffer i % 2 in shared memory, with one __syncwarp per box, between the writes
  // to the buffer and the reads. One is enough: box i + 2 overwrites the buffer of box i after the
  // __syncwarp of box i + 1, and by then all lanes of the warp have read box i.
  template <Activation kOf>
  __device__ __forceinline__ void FinishAs() {
    constexpr int kInBox = S::kBoxColumns / 8;  // groups of eight columns
    constexpr int kWide = S::kColumns / S::kBoxColumns;
#pragma unroll
    for (int m = 0; m < kFragments; ++m) {
      int64_t row_at[kRowsEach];
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) row_at[i] = RowAt(min(Row(m, i), a_.rows - 1));
#pragma unroll
      for (int box = 0; box < kWide; ++box) {
        const int buffer = (group_ * 4 + warp_) * 2 + (m * kWide + box) % 2;
        const uint32_t staged = SharedAddress(memory_.y[buffer]);
#pragma unroll
        for (int i = 0; i < kInBox; i += 2) {
          float v[2][4];
          Values<kOf>(m, box * kInBox + i, v[0]);
          Values<kOf>(m, box * kInBox + i + 1, v[1]);
          Stage(staged, i, v);
        }
        __syncwarp();
        Store(m, staged, column_ + box * S::kBoxColumns, row_at);
      }
    }
  }

  // A warp stores four rows of a box at a time, with eight lanes per row and 16 bytes per lane.
  // Each lane therefore stores 16 bytes in each of kRowsEach rows; Row(m, i) is the i-th of these
  // rows of y.
  static constexpr int kRowsEach = S::kBoxRows / 4;
  __device__ __forceinline__ int Row(int m, int i) const {
    return row_ + m * 64 + i * 4 + lane_ / 8;
  }

  __device__ __forceinline__ int64_t RowAt(int row) const {
    if constexpr (S::kScattered) return a_.row_offset[row];
    return row * a_.y_stride;
  }

  __device__ __forceinline__ void Store(int m, uint32_t staged, int box_column,
                                        const int64_t (&row_at)[kRowsEach]) {
    const int piece = lane_ % 8, column = box_column + piece * 8;
    if (column >= a_.columns) return;
    int64_t column_at = column;
    if constexpr (S::kScattered) {
      column_at = a_.chunk_offset[column / a_.chunk] + column % a_.chunk;
    }
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int row = i * 4 + lane_ / 8;
      const float4 bits = LoadFloat4(staged + row * 128 + (piece ^ row % 8) * 16);
      if (Row(m, i) < a_.rows) Write(bits, column_at + row_at[i]);
    }
  }

  // Writes eight values to y from element `at` on.
  __device__ __forceinline__ void Write(const float4& bits, int64_t at) const {
    if constexpr (S::kScattered) {
      if (a_.y_is_e4m3) {
        StoreE4m3<T, 8>(reinterpret_cast<const T*>(&bits), static_cast<uint8_t*>(a_.y) + at);
        return;
      }
    }
    T* const to = static_cast<T*>(a_.y) + at;
    if (S::kScattered && reinterpret_cast<uintptr_t>(to) % 16 != 0) {
      const T* values = reinterpret_cast<const T*>(&bits);
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = values[i];
    } else {
      *reinterpret_cast<float4*>(to) = bits;
    }
  }

  // Computes four values of y from the accumulators of this thread in fragment m. They are the
  // thread's values in group `eight` of eight columns of the tile, in the order of the wgmma
  // accumulator fragment.
  template <Activation kOf>
  __device__ __forceinline__ void Values(int m, int eight, float (&v)[4]) {
    Products(m, eight, 0, v);
    if constexpr (S::kPlain) AddBias(column_ + ColumnOf(eight), v);
    ActivateTwo<kOf>(v[0], v[1]);
    ActivateTwo<kOf>(v[2], v[3]);
    if constexpr (S::kGated) {
      float up[4];
      Products(m, eight, 1, up);
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] *= up[e];
    }
  }

  // In a group of eight columns, this thread has two adjacent values of a row. Returns the column
  // of the first one, counted from the first column of the tile.
  __device__ __forceinline__ int ColumnOf(int eight) const { return eight * 8 + lane_ % 4 * 2; }

  // The four accumulators of a group of eight columns, scaled. half: 1 for the up half of a gated
  // W, otherwise 0.
  __device__ __forceinline__ void Products(int m, int eight, int half, float (&v)[4]) {
    const auto& sums = sums_[m][half * (S::kColumns / 8) + eight];
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = static_cast<float>(sums[e]);
    if constexpr (S::kScaled) {
      const float2 scales = *reinterpret_cast<const float2*>(
          &memory_.w_scales[group_][half * S::kColumns + ColumnOf(eight)]);
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] *= x_scales_[m][e / 2] * (e % 2 == 0 ? scales.x : scales.y);
    }
  }

  __device__ __forceinline__ void AddBias(int column, float (&v)[4]) {
    float2 bias = {0.0f, 0.0f};
    if (column >= a_.columns) return;
    if (a_.bias != nullptr) {
      bias = __ldg(reinterpret_cast<const float2*>(a_.bias + column));
    } else if (a_.bf16_bias != nullptr) {
      bias = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(a_.bf16_bias + column));
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] += e % 2 == 0 ? bias.x : bias.y;
  }

  // Writes columns [8 i, 8 i + 16) of a box to the staging buffer, swizzled as Store reads them.
  __device__ __forceinline__ void Stage(uint32_t to, int i, const float (&v)[2][4]) {
    const uint32_t pairs[4] = {PackPair<T>(v[0][0], v[0][1]), PackPair<T>(v[0][2], v[0][3]),
                               PackPair<T>(v[1][0], v[1][1]), PackPair<T>(v[1][2], v[1][3])};
    Stmatrix(pairs, to + lane_ % 16 * 128 + ((i + lane_ / 16) ^ (lane_ % 8)) * 16);
  }

  const PersistentArgs& a_;
  PersistentSmem<S>& memory_;
  const int group_, lane_, warp_;
  PipelineState<S::kStages> state_;
  int row_, column_;               // first row of y of the warp; first column of y of the tile
  float x_scales_[kFragments][2];  // 8-bit x: of the thread's rows of y, times alpha
  typename S::Sum sums_[kFragments][S::kChannels / 8][4] = {};
};

}  // namespace quintet::cuda
