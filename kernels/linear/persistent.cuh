// Persistent GEMM for many rows on Hopper: sizes, shared memory, tile scheduler and producer.
// linear/persistent.cu uses it for 16-bit weights, linear/byte_gemm.cu for 8-bit x and weights.
#pragma once

#include "kernels/linear/gemm.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {

struct PersistentArgs {
  int rows, columns, k;  // y is [rows, columns]
  Activation activation;
  void* y;
  int64_t y_stride;
  const float *x_scales, *w_scales;  // 8-bit x and W: [rows], [n]
  float alpha;                       // 8-bit x and W: multiplies the product
  const float* bias;                 // kPlain: [columns], or null
  const __nv_bfloat16* bf16_bias;    // kPlain: likewise
  const float* residual;             // kPlain, y of f32: [rows, columns], or null; may be y
  int64_t residual_stride;
  const int64_t *row_offset, *chunk_offset;  // scattered output: as in ScatterOutput
  int chunk;
  bool y_is_e4m3;  // kScattered: values are rounded to T, then to e4m3
};

// TMA tensor maps of W and x, for boxes of PersistentTile::kWBoxRows and kXBoxRows rows.
struct PersistentTensorMaps {
  CUtensorMap w, x;
};

enum class PersistentOutput { kGated, kScattered, kPlain };

// The tile of a CTA: 128 rows of x by kChannels rows of W. If W is gated, half of the rows of W are
// gate channels and the other half are their up channels, so that one thread holds both
// accumulators of an output value. A CTA has a producer warpgroup and two consumer warpgroups.
// 16-bit values: a tile has 256 channels; each consumer warpgroup computes 64 rows of x.
// 8-bit values: a tile has 128 channels; the consumer warpgroups compute tiles alternately
// (kPingPong), so that one multiplies while the other one runs its epilogue. Two CTAs are a
// cluster; the tile of the second CTA is below the tile of the first. Each CTA loads half of the
// rows of W for both.
// 8-bit values, kFew: for up to 128 rows of x, whose GEMM is bound by reading W. The tile of the
// second CTA is to the right of the tile of the first, and each CTA loads half of the rows of x for
// both. A CTA has one consumer warpgroup, and tiles without gates have 64 channels. Two CTAs run on
// an SM, so that all SMs read W until the end. If y is f32 (the residual stream), it has too few
// columns for that: one CTA with more stages runs on an SM.
// In: the type of x and W; bf16, f16, or with scales __nv_fp8_e4m3 or int8_t. T: the type of y; f32
// only if kPlain.
template <typename InOf, typename TOf, PersistentOutput kOutputOf, bool kFewOf = false>
struct PersistentTile {
  using In = InOf;
  using T = TOf;
  using Sum = std::conditional_t<std::is_same_v<In, int8_t>, int32_t, float>;
  static constexpr bool kScaled = sizeof(In) == 1;
  static constexpr bool kGated = kOutputOf == PersistentOutput::kGated;
  static constexpr bool kScattered = kOutputOf == PersistentOutput::kScattered;
  static constexpr bool kPlain = kOutputOf == PersistentOutput::kPlain;
  static constexpr bool kFew = kFewOf;
  static constexpr int kRows = 128;
  static constexpr int kChannels = !kScaled ? 256 : kFew && !kGated ? 64 : 128;
  static constexpr int kColumns = kGated ? kChannels / 2 : kChannels;  // columns of y in a tile
  static constexpr int kRowBytes = 128;  // of x and of W in a pipeline stage
  static constexpr int kDepth = kRowBytes / static_cast<int>(sizeof(In));  // values of k there
  static constexpr int kCluster = kScaled ? 2 : 1;
  static constexpr bool kPingPong = kScaled && !kFew;
  static constexpr int kCtasPerSm = kFew && sizeof(T) == 2 ? 2 : 1;
  static constexpr int kStages = kPingPong ? 6 : !kFew ? 4 : kCtasPerSm == 1 ? 8 : kGated ? 3 : 4;
  static constexpr int kStageBytes = (kRows + kChannels) * kRowBytes;
  static constexpr int kWBoxRows = kChannels / 2, kXBoxRows = kFew ? kRows / kCluster : kRows;
  static constexpr int kGroups = kFew ? 1 : 2, kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kConsumerRegisters = kFew ? 216 : 232;
  static constexpr int kGroupRows = kPingPong ? kRows : kRows / kGroups;
  // Warps that release a pipeline stage of a CTA.
  static constexpr int kReleases = kCluster * (kPingPong ? 4 : 4 * kGroups);
  static constexpr int kBoxRows = 16, kBoxColumns = 64;  // part of y that a warp stages
  // f32 values of y are stored directly from the accumulators. 16-bit values are first staged in
  // shared memory, in two boxes per warp.
  static constexpr bool kStaged = sizeof(T) == 2;
  static constexpr int kBoxes = kStaged ? kGroups * 4 * 2 : 1;
};

// Shared memory: pipeline stages in the swizzled layout of wgmma descriptors (MakeSmemDescriptor),
// and staging buffers of y with the same swizzle.
template <typename S>
struct alignas(1024) PersistentSmem {
  typename S::In x[S::kStages][S::kRows * S::kDepth];
  typename S::In w[S::kStages][S::kChannels * S::kDepth];
  typename S::T y[S::kBoxes][S::kBoxRows * S::kBoxColumns];
  // 8-bit W: the scales of the tile's rows of W, a copy for each consumer warpgroup.
  float w_scales[S::kScaled ? S::kGroups : 1][S::kScaled ? S::kChannels : 1];
  uint64_t full[S::kStages], empty[S::kStages];
};

// Tile scheduler: the tiles of clusters, of kHeight rows by kWidth columns of y, are visited in
// bands of kBand row tiles; within a band, all tiles of one tile column are visited before those of
// the next. Tiles in flight at the same time therefore share rows of x and of W in L2. A cluster
// processes the tiles first(), first() + stride(), first() + 2 * stride(), ...
template <typename S>
class PersistentTileScheduler {
 public:
  __host__ __device__ __forceinline__ explicit PersistentTileScheduler(const PersistentArgs& a)
      : high_((a.rows + kHeight - 1) / kHeight), wide_((a.columns + kWidth - 1) / kWidth) {}
  __host__ __device__ __forceinline__ int count() const { return high_ * wide_; }
  __device__ __forceinline__ static int first() {
    return static_cast<int>(blockIdx.x) / S::kCluster;
  }
  __device__ __forceinline__ static int stride() {
    return static_cast<int>(gridDim.x) / S::kCluster;
  }
  // Returns the first row and the first column of y that this CTA computes in tile `tile` of its
  // cluster.
  __device__ __forceinline__ int2 At(int tile) const {
    const int first = tile / (kBand * wide_) * kBand, within = tile - first * wide_;
    const int height = min(kBand, high_ - first);
    const int rank = S::kCluster == 1 ? 0 : ClusterRank();
    return {(first + within % height) * kHeight + rank * (kHeight - S::kRows),
            within / height * kWidth + rank * (kWidth - S::kColumns)};
  }

 private:
  static constexpr int kHeight = S::kRows * (S::kFew ? 1 : S::kCluster);
  static constexpr int kWidth = S::kColumns * (S::kFew ? S::kCluster : 1);
  static constexpr int kBand = 16 / S::kCluster;
  const int high_, wide_;
};

// Producer: issues the TMA loads for all tiles of the CTA. One thread calls it. The elements of the
// tensor maps have 16 bits; if S::In is an 8-bit type, each element holds two values.
template <typename S>
__device__ void RunPersistentProducer(const PersistentArgs& a, const PersistentTensorMaps& maps,
                                      PersistentSmem<S>& memory) {
  constexpr int kHalf = S::kWBoxRows;
  const PersistentTileScheduler<S> tiles(a);
  PipelineState<S::kStages> state;
  for (int tile = tiles.first(); tile < tiles.count(); tile += tiles.stride()) {
    const int2 at = tiles.At(tile);
    const int second = at.y + (S::kGated ? a.columns : kHalf);
    for (int k = 0; k < a.k; k += S::kDepth) {
      const uint32_t full = SharedAddress(&memory.full[state.stage]);
      const uint32_t w = SharedAddress(memory.w[state.stage]);
      const uint32_t x = SharedAddress(memory.x[state.stage]);
      BarrierWait(SharedAddress(&memory.empty[state.stage]), state.parity ^ 1);
      BarrierArriveExpectTx(full, S::kStageBytes);
      const int at_k = k * static_cast<int>(sizeof(typename S::In)) / 2;
      if constexpr (S::kFew) {
        const int rows = ClusterRank() * S::kXBoxRows;
        TmaLoadMulticast(x + rows * S::kRowBytes, maps.x, at_k, at.x + rows, full);
      } else {
        TmaLoad(x, maps.x, at_k, 0, at.x, full);
      }
      if constexpr (S::kCluster == 2 && !S::kFew) {
        const int half = ClusterRank();
        TmaLoadMulticast(w + half * kHalf * S::kRowBytes, maps.w, at_k, half == 0 ? at.y : second,
                         full);
      } else {
        TmaLoad(w, maps.w, at_k, 0, at.y, full);
        TmaLoad(w + kHalf * S::kRowBytes, maps.w, at_k, 0, second, full);
      }
      state.Advance();
    }
  }
}

}  // namespace quintet::cuda
