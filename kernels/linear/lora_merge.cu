// LoRA terms merged into a copy of a weight, for GEMMs of many rows that have one adapter.
#include "kernels/linear/gemm.cuh"
#include "kernels/linear/lora.cuh"

namespace quintet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kEach = 8;                     // consecutive values of k of a thread
constexpr int kMergeRows = kMergedLoraRows;  // rows of W of a warp
constexpr int kBlock = static_cast<int>(kLoraRankMultiple);

template <typename T>
struct MergeParams {
  const T* w;             // row 0 of y in W
  const LoraPart* parts;  // of the adapter
  T* y;
  int k, begin, rows;  // begin: index of row 0 of y in W
  int part_columns;
};

// y = W + b a for consecutive rows of W, in f32, rounded once.
// Shapes: w and y [rows, k], dense, and they may be the same memory; k is a multiple of kEach,
// `begin` and part_columns are multiples of kMergeRows.
// Mapping: a warp computes kMergeRows rows of 32 * kEach values of k; the factors a stay in
// registers, a block of ranks at a time.
// Bound: W read and y written once. For a W of 10240 x 2048, 84 MB: 20 us at 4.3 TB/s; rank 16
// takes 0.34 G multiply-adds.
// Tests: tests/kernels/linear/lora_gemm_test.cc.
template <typename T>
__global__ void __launch_bounds__(kThreads) MergeKernel(MergeParams<T> a) {
  WaitOnDependentGrids();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int k = (static_cast<int>(blockIdx.x) * 32 + lane) * kEach;
  const int row = (static_cast<int>(blockIdx.y) * kWarps + warp) * kMergeRows;
  if (k >= a.k || row >= a.rows) return;
  const int rows = min(kMergeRows, a.rows - row);
  const LoraPart part = lora::LoadPart(a.parts + (a.begin + row) / a.part_columns);
  const int rank = static_cast<int>(part.rank);
  const auto* const factors = static_cast<const T*>(part.a) + k;
  const auto* const b =
      static_cast<const T*>(part.b) + int64_t{(a.begin + row) % a.part_columns} * rank;
  float sums[kMergeRows][kEach] = {};
#pragma unroll
  for (int r = 0; r < kMergeRows; ++r) {
    if (r < rows) LoadConsecutive(a.w + int64_t{row + r} * a.k + k, sums[r]);
  }
  for (int first = 0; first < rank; first += kBlock) {
    float columns[kMergeRows][kBlock] = {};
#pragma unroll
    for (int r = 0; r < kMergeRows; ++r) {
      if (r < rows) LoadConsecutive(b + r * rank + first, columns[r]);
    }
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      float values[kEach];
      LoadConsecutive(factors + int64_t{first + i} * a.k, values);
#pragma unroll
      for (int r = 0; r < kMergeRows; ++r) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sums[r][j] = fmaf(columns[r][i], values[j], sums[r][j]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kMergeRows; ++r) {
    if (r < rows) StoreConsecutive(sums[r], a.y + int64_t{row + r} * a.k + k);
  }
}

template <typename T>
void Launch(MergeParams<T> a, CudaStream& stream) {
  const auto blocks = [](int count, int each) {
    return static_cast<unsigned>((count + each - 1) / each);
  };
  const dim3 grid(blocks(a.k, 32 * kEach), blocks(a.rows, kWarps * kMergeRows));
  cuda::Launch(stream, grid, dim3(kThreads), 0, MergeKernel<T>, a);
}

}  // namespace

bool CanMergeLora(const WeightView& w, const LoraWeight& lora) {
  const DType activations = w.type() == WeightType::kF16 ? DType::kF16 : DType::kBF16;
  return lora.dtype == activations && lora.n() == w.n() && w.k() % kEach == 0 &&
         lora.part_columns % kMergeRows == 0;
}

bool SupportsMergeLora(const WeightView& w, const LoraWeight& lora, const CudaStream&) {
  return !IsQuantized(w.type()) && w.type() != WeightType::kF32 && CanMergeLora(w, lora);
}

void MergeLora(const MergeLoraArgs& args, CudaStream& stream) {
  MergeLoraRows(*args.w, *args.lora, args.adapter, 0, args.w->n(), args.to, stream);
}

void MergeLoraRows(const WeightView& w, const LoraWeight& lora, int32_t adapter, int64_t begin,
                   int64_t end, void* to, CudaStream& stream) {
  const void* from = to;
  if (IsQuantized(w.type())) {
    Dequantize(w, begin, end, to, stream);
  } else {
    from = static_cast<const char*>(w.panels()) + begin * w.k() * 2;
  }
  const auto launch = [&](auto tag) {
    using T = typename decltype(tag)::type;
    Launch<T>({.w = static_cast<const T*>(from),
               .parts = lora.table + adapter * lora.stride,
               .y = static_cast<T*>(to),
               .k = static_cast<int>(w.k()),
               .begin = static_cast<int>(begin),
               .rows = static_cast<int>(end - begin),
               .part_columns = static_cast<int>(lora.part_columns)},
              stream);
  };
  lora.dtype == DType::kBF16 ? launch(TypeTag<__nv_bfloat16>()) : launch(TypeTag<__half>());
}

}  // namespace quintet::cuda
