// LoRA terms in the split-K GEMM kernel (linear/split_k.cuh) if all rows have the same adapter or
// none: y += (x a^T) b^T. A dedicated warpgroup of each CTA computes x a^T over the CTA's range of
// k with mma, from the rows of x that the GEMM's producer loads. It then multiplies the result by
// b, and the consumers add the product to their accumulators. Therefore the partial sums of the
// CTAs of a cluster are added only once, for the GEMM and the terms together.
#pragma once

#include "kernels/linear/split_k_epilogue.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/tma.cuh"

namespace quintet::cuda {

// thread: index in the warpgroup. ring: shared memory address of the pipeline's buffers.
//
// A block is 16 rows of `a`. They belong to the part of the tile's columns; with gated weights, to
// the part of its gate columns or of its up columns. There are 1, 2 or 4 blocks
// (SplitKLora::blocks). Each warp multiplies one block. A pipeline stage has four groups of 16
// values of k; with n blocks, a warp multiplies n of these groups.
template <typename T, typename S>
class SplitKOneLora {
 public:
  __device__ __forceinline__ SplitKOneLora(const SplitKArgs& a, const SplitKWork<S>& share,
                                           const SplitKSmem& layout, unsigned char* memory,
                                           uint32_t ring, int thread)
      : a_(a),
        share_(share),
        ring_(ring),
        thread_(thread),
        warp_(thread / 32),
        lane_(thread % 32),
        each_half_(a.up_offset > 0 ? a.lora.blocks / 2 : a.lora.blocks),
        blocks_(a.lora.blocks),
        tail_(*reinterpret_cast<SplitKSmem::Tail*>(memory + layout.tail)),
        sums_(reinterpret_cast<float*>(memory + layout.terms)),
        t_(memory + layout.lora) {
    int adapter = -1;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int r = lane_ + 32 * i;
      const int own = r < share.rows ? __ldcg(a.lora.adapters + share.row + r) : -1;
      used_rows_[i] = __ballot_sync(0xffffffffu, own >= 0);
      adapter = max(adapter, own);
    }
    adapter_ = __reduce_max_sync(0xffffffffu, adapter);
  }

  // Computes the LoRA terms, stores them in shared memory (layout.terms) in the order of the
  // consumers' accumulators, and arrives at tail.lora_ready.
  __device__ __forceinline__ void Run() {
    uint32_t first_b[4];
    PrefetchRows();
    LoadColumns(0, first_b);
    MultiplyRows();
    NamedBarrierSync(kBarrier, kWarpgroup);
    AddWarps();
    NamedBarrierSync(kBarrier, kWarpgroup);
    MultiplyColumns(first_b);
    __syncwarp();
    if (lane_ == 0) BarrierArrive(SharedAddress(&tail_.lora_ready));
  }

 private:
  static constexpr int kBarrier = 2;  // named barrier; 1 is the consumers'
  static constexpr int kTiles = S::kRows / 8, kWords = (S::kRows + 31) / 32;
  static constexpr int kSumPitch = S::kRows + 4;  // floats from one row of t^T to the next
  static constexpr int kUnits = 4;                // groups of k whose factors are loaded together

  __device__ __forceinline__ int Half(int block) const { return block / each_half_; }
  __device__ __forceinline__ LoraPart PartOf(int half) const {
    LoraPart none;
    if (adapter_ < 0) return none;
    const int part = a_.lora.of_column.Quotient(half * a_.up_offset + share_.column);
    return a_.lora.table[adapter_ * static_cast<int>(a_.lora.stride) + part];
  }

  // Prefetches to L2 all values of `a` that the CTA reads, because MultiplyRows loads them too late
  // to hide the latency of HBM. One prefetch is for the 64 values of k of one row and one stage.
  __device__ __forceinline__ void PrefetchRows() const {
    const int row = thread_ % 16, first = share_.begin * kSplitKDepth;
    for (int block = 0; block < blocks_; ++block) {
      const LoraPart part = PartOf(Half(block));
      const int rank = block % each_half_ * 16;
      if (static_cast<int>(part.rank) <= rank) continue;
      const auto* const from = static_cast<const T*>(part.a) + (rank + row) * a_.k + first;
      for (int i = thread_ / 16; i < share_.count; i += kWarpgroup / 16) {
        PrefetchL2(from + i * kSplitKDepth);
      }
    }
  }

  // Computes t^T = a x^T for this warp's block, over the warp's groups of k, and stores it in sums_
  // [warp, 16, kRows].
  __device__ __forceinline__ void MultiplyRows() {
    const int groups = 4 / blocks_, block = warp_ % blocks_, group = warp_ / blocks_;
    const int per_stage = blocks_, shift = blocks_ / 2;  // groups of k of this warp in a stage
    const LoraPart part = PartOf(Half(block));
    const int rank = block % each_half_ * 16;
    const bool used = static_cast<int>(part.rank) > rank;
    const int g = lane_ / 4, t = lane_ % 4;
    const auto* const row =
        static_cast<const T*>(part.a) + (rank + g) * a_.k + share_.begin * kSplitKDepth + 2 * t;
    const int end = a_.k - share_.begin * kSplitKDepth - 2 * t;
    const int units = share_.count * per_stage;
    const auto offset = [&](int unit) {
      return (unit >> shift) * kSplitKDepth + (group + (unit & (per_stage - 1)) * groups) * 16;
    };
    const auto load = [&](int unit, uint32_t(&factors)[4]) {
      const int k = offset(unit);
      const auto at = [&](int more, int rows) {
        const bool inside = used && unit < units && k + more < end;
        return inside ? __ldg(reinterpret_cast<const uint32_t*>(row + rows * a_.k + k + more)) : 0u;
      };
      factors[0] = at(0, 0);
      factors[1] = at(0, 8);
      factors[2] = at(8, 0);
      factors[3] = at(8, 8);
    };
    uint32_t factors[kUnits][4], next[kUnits][4];
    float c[kTiles][4] = {};
#pragma unroll
    for (int u = 0; u < kUnits; ++u) load(u, factors[u]);
    int stage = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int first = 0; first < units; first += kUnits) {
#pragma unroll
      for (int u = 0; u < kUnits; ++u) load(first + kUnits + u, next[u]);
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
        const int unit = first + u;
        if (unit < units) {
          if ((unit & (per_stage - 1)) == 0) BarrierWait(SharedAddress(&tail_.full[stage]), parity);
          MultiplyGroup(stage, offset(unit) % kSplitKDepth / 8, factors[u], c);
          if ((unit & (per_stage - 1)) == per_stage - 1) {
            __syncwarp();
            if (lane_ == 0) BarrierArrive(SharedAddress(&tail_.empty[stage]));
            if (++stage == a_.stages) stage = 0, parity ^= 1;
          }
        }
      }
      // This copy has a loop of its own: in the loop above, it would wait for the loads of `next`.
#pragma unroll
      for (int u = 0; u < kUnits; ++u) {
#pragma unroll
        for (int i = 0; i < 4; ++i) factors[u][i] = next[u][i];
      }
    }
    StoreSums(c);
  }

  __device__ __forceinline__ void StoreSums(const float (&c)[kTiles][4]) const {
    float* const to = sums_ + (warp_ * 16 + lane_ / 4) * kSumPitch + 2 * (lane_ % 4);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      *reinterpret_cast<float2*>(to + 8 * j) = {c[j][0], c[j][1]};
      *reinterpret_cast<float2*>(to + 8 * kSumPitch + 8 * j) = {c[j][2], c[j][3]};
    }
  }

  // c += a x^T for 16 values of k of a stage. chunk: in units of 8 values, the index of the first
  // of them in a row of x.
  __device__ __forceinline__ void MultiplyGroup(int stage, int chunk, const uint32_t (&a)[4],
                                                float (&c)[kTiles][4]) const {
    const uint32_t x = ring_ + stage * S::kStageBytes + S::kWBytes;
    const int matrix = lane_ / 8, r = lane_ % 8;
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      // The four matrices hold the values from k on and from k + 8 on of tile j, then those of tile
      // j + 1. Rows are swizzled (MakeTensorMap).
      const int row = (j + matrix / 2) * 8 + r;
      uint32_t b[4];
      Ldmatrix(b, x + row * 128 + (((chunk + matrix % 2) ^ r) << 4));
      Mma<T>(c[j], a[0], a[1], a[2], a[3], b[0], b[1]);
      Mma<T>(c[j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }

  // Adds the warps' sums of each block to t, and stores each value of t as two values of T: t
  // rounded to T, and the remainder rounded to T. t_ has [2, blocks, kRows] rows of 16 values,
  // kSplitKOneLoraPitch bytes apart.
  __device__ __forceinline__ void AddWarps() const {
    static_assert(kWarpgroup % S::kRows == 0);
    const int r = thread_ % S::kRows;
    const bool used = (r < 32 ? used_rows_[0] : used_rows_[kWords - 1]) >> r % 32 & 1;
    for (int e = thread_ / S::kRows; e < blocks_ * 8; e += kWarpgroup / S::kRows) {
      const int pair = e % 8, block = e / 8;
      float v[2] = {};
      for (int w = block; used && w < 4; w += blocks_) {
        const float* const from = sums_ + (w * 16 + 2 * pair) * kSumPitch + r;
        v[0] += from[0];
        v[1] += from[kSumPitch];
      }
      const uint32_t high = PackPair<T>(v[0], v[1]);
      const T* const rounded = reinterpret_cast<const T*>(&high);
      unsigned char* const to = t_ + (block * S::kRows + r) * kSplitKOneLoraPitch + pair * 4;
      *reinterpret_cast<uint32_t*>(to) = high;
      *reinterpret_cast<uint32_t*>(to + blocks_ * S::kRows * kSplitKOneLoraPitch) =
          PackPair<T>(v[0] - ToF32(rounded[0]), v[1] - ToF32(rounded[1]));
    }
  }

  // Loads the LoRA factor b for this warp's 16 columns of the tile and the ranks [16 * block, 16 *
  // block + 16), as operand A of mma. Ranks are counted within the part of these columns: with
  // gated weights, a warp has either gate or up columns.
  __device__ __forceinline__ void LoadColumns(int block, uint32_t (&b)[4]) const {
    const int half = a_.up_offset > 0 && warp_ >= 2 ? 1 : 0, within = warp_ - 2 * half;
    const LoraPart part = PartOf(half);
    const int rank = static_cast<int>(part.rank), g = lane_ / 4, t = lane_ % 4;
    const int first = half * a_.up_offset + share_.column;
    const int column = first - a_.lora.of_column.Quotient(first) * a_.lora.of_column.by;
    const auto* const from =
        static_cast<const T*>(part.b) + (column + within * 16 + g) * rank + block * 16 + 2 * t;
    const auto at = [&](int more, int columns) {
      if (block * 16 >= rank) return 0u;
      return __ldg(reinterpret_cast<const uint32_t*>(from + columns * rank + more));
    };
    b[0] = at(0, 0);
    b[1] = at(0, 8);
    b[2] = at(8, 0);
    b[3] = at(8, 8);
  }

  __device__ __forceinline__ void MultiplyColumns(uint32_t (&b)[4]) {
    const int half = a_.up_offset > 0 && warp_ >= 2 ? 1 : 0, g = lane_ / 4, t = lane_ % 4;
    float c[kTiles][4] = {};
    for (int block = 0; block < each_half_; ++block) {
      if (block > 0) LoadColumns(block, b);
      const unsigned char* const rows =
          t_ + (half * each_half_ + block) * S::kRows * kSplitKOneLoraPitch;
#pragma unroll
      for (int rest = 0; rest < 2; ++rest) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const auto* const from = reinterpret_cast<const uint32_t*>(
              rows + (rest * blocks_ * S::kRows + 8 * j + g) * kSplitKOneLoraPitch + 4 * t);
          Mma<T>(c[j], b[0], b[1], b[2], b[3], from[0], from[4]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums_[(4 * j + e) * kWarpgroup + thread_] = c[j][e];
    }
  }

  const SplitKArgs& a_;
  const SplitKWork<S>& share_;
  const uint32_t ring_;
  const int thread_, warp_, lane_;
  const int each_half_, blocks_;  // blocks of a half, and of both
  int adapter_;                   // of the tile's rows; -1: no row has one
  unsigned used_rows_[kWords];    // bit r: row r of the tile has it
  SplitKSmem::Tail& tail_;
  float* const sums_;       // MultiplyRows; after AddWarps the terms
  unsigned char* const t_;  // AddWarps
};

}  // namespace quintet::cuda
