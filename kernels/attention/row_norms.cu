// Computes the largest row norm of Q, and of K, per tile and head. From them the Hopper kernel
// finds in which K/V tiles ALiBi's bias makes every P 0 (attention/hopper_alibi_skip.cuh).
#include "kernels/attention/call.cuh"

namespace quintet::cuda {
namespace {

constexpr int kWarps = 8;

// to[.., tile, head] = an upper bound of the L2 norms of the tile's kNormTileRows rows in the head.
// Shapes: q, k [rows, heads, head_dim] packed, 16-byte aligned; head_dim <= 8 * kPieces; to [2,
// tiles, heads] f32: index 0 for q, 1 for k.
// Math: sums of squares in f32; the norm is multiplied by 1.001, which keeps it an upper bound
// despite rounding.
// Mapping: grid (tiles, 2); one warp per head, kPieces lanes per row.
// Bound: reading q and k once.
// Test: tests/kernels/attention/attention_test.cc (ALiBi and a distant key with a large norm).
// History: attention/NOTES.md.
template <typename T, int kPieces>
__global__ void __launch_bounds__(kWarps * 32)
    MaxNormsKernel(const __grid_constant__ AttentionCall call, float* to) {
  WaitOnDependentGrids();
  const bool keys = blockIdx.y == 1;
  const T* from = static_cast<const T*>(keys ? call.k : call.q);
  const int64_t row_stride = keys ? call.k_row : call.q_row;
  const int64_t head_stride = keys ? call.k_head : call.q_head;
  const int64_t first = int64_t{blockIdx.x} * kNormTileRows;
  const int64_t rows = min(int64_t{kNormTileRows}, (keys ? call.k_rows : call.q_rows) - first);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int piece = lane % kPieces;
  to += (blockIdx.y * gridDim.x + blockIdx.x) * call.heads;
  for (int head = warp; head < call.heads; head += kWarps) {
    const T* x = from + head * head_stride + piece * 8;
    float largest = 0.0f;
#pragma unroll 8
    for (int r = lane / kPieces; r < kNormTileRows; r += 32 / kPieces) {
      float squares = 0.0f;
      if (r < rows && piece * 8 < call.head_dim) {
        float values[8];
        LoadVector(x + (first + r) * row_stride, values);
#pragma unroll
        for (float v : values) squares = fmaf(v, v, squares);
      }
#pragma unroll
      for (int step = 1; step < kPieces; step *= 2) {
        squares += __shfl_xor_sync(0xffffffffu, squares, step);
      }
      largest = squares < INFINITY ? fmaxf(largest, squares) : INFINITY;  // NaN counts as infinity
    }
#pragma unroll
    for (int step = kPieces; step < 32; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    }
    if (lane == 0) to[head] = sqrtf(largest) * 1.001f;
  }
}

}  // namespace

int64_t NormTiles(int64_t rows) { return (rows + kNormTileRows - 1) / kNormTileRows; }

template <typename T>
void ComputeMaxNorms(AttentionCall* call, float* to, CudaStream& stream) {
  call->max_norms = to;
  call->norm_tiles = NormTiles(std::max(call->q_rows, call->k_rows));
  const dim3 grid(static_cast<unsigned>(call->norm_tiles), 2);
  Launch(stream, grid, dim3(kWarps * 32), 0,
         call->head_dim <= 64 ? MaxNormsKernel<T, 8> : MaxNormsKernel<T, 16>, *call, to);
}
template void ComputeMaxNorms<__nv_bfloat16>(AttentionCall*, float*, CudaStream&);
template void ComputeMaxNorms<__half>(AttentionCall*, float*, CudaStream&);

}  // namespace quintet::cuda
