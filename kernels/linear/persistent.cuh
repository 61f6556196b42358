// Persistent GEMM for many rows on Hopper: sizes, shared memory, tile scheduler and producer.
#pragma once

#include "kernels/linear/gemm.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace quintet::cuda {

struct PersistentArgs {
  int rows, columns, k;  // y is [rows, columns]
  Activation activation;
  void* y;
  int64_t y_stride;
  const int64_t *row_offset, *chunk_offset;  // scattered output: as in ScatterOutput
  int chunk;
};

// TMA tensor maps of W and x, for boxes of 128 rows.
struct PersistentTensorMaps {
  CUtensorMap w, x;
};

enum class PersistentOutput { kGated, kScattered };

// The tile of a CTA: 128 rows of x by 256 rows of W. If W is gated, the latter are 128 gate
// channels and then their 128 up channels, so that one thread holds both accumulators of an output
// value. Two consumer warpgroups compute 64 rows of the tile each; a third warpgroup is the
// producer.
template <typename TOf, PersistentOutput kOutputOf>
struct PersistentTile {
  using T = TOf;
  static constexpr bool kGated = kOutputOf == PersistentOutput::kGated;
  static constexpr bool kScattered = kOutputOf == PersistentOutput::kScattered;
  static constexpr int kRows = 128, kChannels = 256;
  static constexpr int kColumns = kGated ? kChannels / 2 : kChannels;  // columns of y in a tile
  static constexpr int kDepth = 64;  // values of k per pipeline stage: 128 bytes per row
  static constexpr int kStages = 4;
  static constexpr int kStageBytes = (kRows + kChannels) * kDepth * 2;
  static constexpr int kGroups = 2, kThreads = (1 + kGroups) * kWarpgroup;
  static constexpr int kBoxRows = 16, kBoxColumns = 64;  // part of y that a warp stages
};

// Shared memory: pipeline stages in the swizzled layout of wgmma descriptors (MakeSmemDescriptor),
// and staging buffers of y with the same swizzle.
template <typename S>
struct alignas(1024) PersistentSmem {
  typename S::T x[S::kStages][S::kRows * S::kDepth];
  typename S::T w[S::kStages][S::kChannels * S::kDepth];
  typename S::T y[S::kGroups * 4][2][S::kBoxRows * S::kBoxColumns];  // two per warp
  uint64_t full[S::kStages], empty[S::kStages];
};

// Tile scheduler: the tiles of y are visited in bands of kBand row tiles; within a band, all tiles
// of one tile column are visited before those of the next. Tiles in flight at the same time
// therefore share rows of x and of W in L2.
template <typename S>
class PersistentTileScheduler {
 public:
  __host__ __device__ __forceinline__ explicit PersistentTileScheduler(const PersistentArgs& a)
      : high_((a.rows + S::kRows - 1) / S::kRows),
        wide_((a.columns + S::kColumns - 1) / S::kColumns) {}
  __host__ __device__ __forceinline__ int count() const { return high_ * wide_; }
  // Returns the first row and the first column of y that belong to a tile.
  __device__ __forceinline__ int2 At(int tile) const {
    const int first = tile / (kBand * wide_) * kBand, within = tile - first * wide_;
    const int height = min(kBand, high_ - first);
    return {(first + within % height) * S::kRows, within / height * S::kColumns};
  }

 private:
  static constexpr int kBand = 16;
  const int high_, wide_;
};

// Producer: issues the TMA loads for all tiles of the CTA. One thread calls it.
template <typename S>
__device__ void RunPersistentProducer(const PersistentArgs& a, const PersistentTensorMaps& maps,
                                      PersistentSmem<S>& memory) {
  constexpr int kHalf = S::kChannels / 2;
  const PersistentTileScheduler<S> tiles(a);
  PipelineState<S::kStages> state;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count();
       tile += static_cast<int>(gridDim.x)) {
    const int2 at = tiles.At(tile);
    const int second = at.y + (S::kGated ? a.columns : kHalf);
    for (int k = 0; k < a.k; k += S::kDepth) {
      const uint32_t full = SharedAddress(&memory.full[state.stage]);
      const uint32_t w = SharedAddress(memory.w[state.stage]);
      BarrierWait(SharedAddress(&memory.empty[state.stage]), state.parity ^ 1);
      BarrierArriveExpectTx(full, S::kStageBytes);
      TmaLoad(SharedAddress(memory.x[state.stage]), maps.x, k, 0, at.x, full);
      TmaLoad(w, maps.w, k, 0, at.y, full);
      TmaLoad(w + kHalf * S::kDepth * 2, maps.w, k, 0, second, full);
      state.Advance();
    }
  }
}

}  // namespace quintet::cuda
