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
    for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count();
         tile += static_cast<int>(gridDim.x)) {
      Multiply();
      const int2 at = tiles.At(tile);
      row_ = at.x + group_ * 64 + warp_ * S::kBoxRows;
      column_ = at.y;
      Finish();
    }
  }

 private:
  // Releases a pipeline stage, so that the producer may overwrite it.
  __device__ __forceinline__ void Release(int stage) {
    if (lane_ == 0) BarrierArrive(SharedAddress(&memory_.empty[stage]));
  }

  // Mainloop: sums_ = x W^T of the tile.
  __device__ __forceinline__ void Multiply() {
    const int steps = (a_.k + S::kDepth - 1) / S::kDepth;
    int before = 0;
    for (int step = 0; step < steps; ++step) {
      BarrierWait(SharedAddress(&memory_.full[state_.stage]), state_.parity);
      const uint64_t x =
          MakeSmemDescriptor(SharedAddress(memory_.x[state_.stage] + group_ * 64 * S::kDepth), 16);
      const uint64_t w = MakeSmemDescriptor(SharedAddress(memory_.w[state_.stage]), 16);
      WarpgroupArrive();
#pragma unroll
      for (int part = 0; part < S::kDepth / 16; ++part) {
        Wgmma<T>(sums_, x + part * 2, w + part * 2, step > 0 || part > 0);
      }
      WarpgroupCommitBatch();
      if (step > 0) {
        WarpgroupWait<1>();
        Release(before);
      }
      before = state_.stage;
      state_.Advance();
    }
    WarpgroupWait<0>();
    WarpgroupFenceOperand(sums_);
    Release(before);
  }

  __device__ __forceinline__ void Finish() {
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

  // Epilogue: each warp writes its 16 rows of y in boxes of 64 columns (128 bytes). Box i goes
  // through staging buffer i % 2 in shared memory, with one __syncwarp per box, between the writes
  // to the buffer and the reads. One is enough: box i + 2 overwrites the buffer of box i after the
  // __syncwarp of box i + 1, and by then all lanes of the warp have read box i.
  template <Activation kOf>
  __device__ __forceinline__ void FinishAs() {
    constexpr int kInBox = S::kBoxColumns / 8;  // groups of eight columns
    int64_t row_at[kRowsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) row_at[i] = RowAt(min(Row(i), a_.rows - 1));
#pragma unroll
    for (int box = 0; box < S::kColumns / S::kBoxColumns; ++box) {
      const uint32_t staged = SharedAddress(memory_.y[group_ * 4 + warp_][box % 2]);
#pragma unroll
      for (int i = 0; i < kInBox; i += 2) {
        float v[2][4];
        Values<kOf>(box * kInBox + i, v[0]);
        Values<kOf>(box * kInBox + i + 1, v[1]);
        Stage(staged, i, v);
      }
      __syncwarp();
      Store(staged, column_ + box * S::kBoxColumns, row_at);
    }
  }

  // A warp stores four rows of a box at a time, with eight lanes per row and 16 bytes per lane.
  // Each lane therefore stores 16 bytes in each of kRowsEach rows; Row(i) is the i-th of these rows
  // of y.
  static constexpr int kRowsEach = S::kBoxRows / 4;
  __device__ __forceinline__ int Row(int i) const { return row_ + i * 4 + lane_ / 8; }

  __device__ __forceinline__ int64_t RowAt(int row) const {
    if constexpr (S::kScattered) return a_.row_offset[row];
    return row * a_.y_stride;
  }

  __device__ __forceinline__ void Store(uint32_t staged, int box_column,
                                        const int64_t (&row_at)[kRowsEach]) {
    const int piece = lane_ % 8, column = box_column + piece * 8;
    if (column >= a_.columns) return;
    int64_t column_at = column;
    if constexpr (S::kScattered) {
      column_at = a_.chunk_offset[column / a_.chunk] + column % a_.chunk;
    }
    T* const y = static_cast<T*>(a_.y) + column_at;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int row = i * 4 + lane_ / 8;
      const float4 bits = LoadFloat4(staged + row * 128 + (piece ^ row % 8) * 16);
      if (Row(i) < a_.rows) Write(bits, y + row_at[i]);
    }
  }

  __device__ static __forceinline__ void Write(const float4& bits, T* to) {
    if (S::kScattered && reinterpret_cast<uintptr_t>(to) % 16 != 0) {
      const T* values = reinterpret_cast<const T*>(&bits);
#pragma unroll
      for (int i = 0; i < 8; ++i) to[i] = values[i];
    } else {
      *reinterpret_cast<float4*>(to) = bits;
    }
  }

  // Computes four values of y from the accumulators of this thread. `eight`: index of a group of
  // eight columns of the tile; the four values are those that the thread has in this group, in the
  // order of the wgmma accumulator fragment.
  template <Activation kOf>
  __device__ __forceinline__ void Values(int eight, float (&v)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) v[e] = sums_[eight][e];
    ActivateTwo<kOf>(v[0], v[1]);
    ActivateTwo<kOf>(v[2], v[3]);
    if constexpr (S::kGated) {
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] *= sums_[S::kColumns / 8 + eight][e];
    }
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
  int row_, column_;  // first row of y of the warp; first column of y of the tile
  float sums_[S::kChannels / 8][4] = {};
};

}  // namespace quintet::cuda
