#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda {
namespace {

constexpr int kMaxThreads = 256;

// Kernel arguments: the tensors of EmbeddingArgs as addresses in device memory, with strides in
// elements.
template <typename T, typename Out>
struct EmbeddingParams {
  const T* table;
  const T* position_table;  // or null
  const int32_t* ids;
  const int32_t* next_tokens;
  const int32_t* positions;
  int32_t* history;  // or null
  const int32_t* slots;
  Out* y;
  int64_t table_stride, position_stride, y_stride, id_step, position_step, rows;
  int d;
  float scale;
};

// kWidth consecutive elements of a row, loaded or stored with one instruction.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Piece {
  T values[kWidth];
};
template <typename T, int kWidth>
__device__ __forceinline__ Piece<T, kWidth> LoadPiece(const T* from) {
  return *reinterpret_cast<const Piece<T, kWidth>*>(from);
}

// y[r] = scale * table[id] + position_table[positions[r]] and history[slots[r]] = id, where id is
// ids[r], or next_tokens[-1 - ids[r]] if ids[r] < 0.
// Shapes: tables [.., d] T, y [rows, d] Out.
// Numerics: f32, one multiplication and one addition, rounded once to Out.
// Mapping: kRows rows per block. A thread owns the same kWidth columns of each row and issues all
// loads before its first store. kWidth is 16 bytes divided by the size of the larger of T and Out,
// or 1 if rows are not aligned. Row indices past the end are clamped to the last row, which is then
// written several times with the same values.
// Bound: rows * d * (sizeof(T) per table + sizeof(Out)) bytes. 14.4 us for bf16 16384 x 768 on an
// H200, where moving as many bytes at 4.26 TB/s takes 11.8 us. History: kernels/ops/NOTES.md.
// Test: tests/kernels/ops/embedding_test.cc.
template <typename T, typename Out, int kWidth, int kRows>
__global__ void __launch_bounds__(kMaxThreads) EmbeddingKernel(EmbeddingParams<T, Out> a) {
  int64_t rows[kRows], positions[kRows];
  int32_t ids[kRows], slots[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    rows[r] = min(int64_t{blockIdx.x} * kRows + r, a.rows - 1);
    ids[r] = __ldcg(a.ids + rows[r] * a.id_step);
    if (a.position_table != nullptr) {
      positions[r] = __ldcg(a.positions + rows[r] * a.position_step) * a.position_stride;
    }
    slots[r] = a.history == nullptr ? -1 : __ldcg(a.slots + rows[r]);
  }
  WaitOnDependentGrids();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (ids[r] < 0) ids[r] = max(0, a.next_tokens[-1 - ids[r]]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (threadIdx.x == 0 && slots[r] >= 0) a.history[slots[r]] = ids[r];
  }
  const int step = static_cast<int>(blockDim.x) * kWidth;
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < a.d; i += step) {
    Piece<T, kWidth> values[kRows], added[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      values[r] = LoadPiece<T, kWidth>(a.table + ids[r] * a.table_stride + i);
      if (a.position_table != nullptr) {
        added[r] = LoadPiece<T, kWidth>(a.position_table + positions[r] + i);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      Piece<Out, kWidth> out;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        float value = __fmul_rn(ToF32(values[r].values[j]), a.scale);
        if (a.position_table != nullptr) value = __fadd_rn(value, ToF32(added[r].values[j]));
        out.values[j] = FromF32<Out>(value);
      }
      *reinterpret_cast<Piece<Out, kWidth>*>(a.y + rows[r] * a.y_stride + i) = out;
    }
  }
}

template <typename T, typename Out>
void LaunchEmbedding(const EmbeddingArgs& args, CudaStream& stream) {
  EmbeddingParams<T, Out> a{};
  a.table = args.table.as<T>();
  a.ids = stream.DevicePtr(args.ids.as<const int32_t>());
  a.next_tokens = args.next_tokens.as<const int32_t>();
  a.id_step = args.ids.stride[0];
  a.table_stride = args.table.stride[0];
  bool vectors = Vectorizable(args.table) && Vectorizable(args.y);
  if (args.positions.defined()) {
    a.position_table = args.position_table.as<T>();
    a.positions = stream.DevicePtr(args.positions.as<const int32_t>());
    a.position_step = args.positions.stride[0];
    a.position_stride = args.position_table.stride[0];
    vectors = vectors && Vectorizable(args.position_table);
  }
  if (args.history.defined()) {
    a.history = args.history.as<int32_t>();
    a.slots = stream.DevicePtr(args.slots.data());
  }
  a.y = args.y.as<Out>();
  a.y_stride = args.y.stride[0];
  a.rows = args.y.dim[0];
  a.d = static_cast<int>(args.y.dim[1]);
  a.scale = args.scale;
  constexpr int kWidth = std::min(kVector<T>, kVector<Out>), kManyRows = 4;
  const int width = vectors ? kWidth : 1;
  const int threads = std::clamp((a.d / width + 31) / 32 * 32, 32, kMaxThreads);
  // With few rows (a decoder step), one row per block spreads them over all SMs.
  const bool many = vectors && a.rows > kManyRows * stream.num_sms();
  const int64_t rows = many ? kManyRows : 1;
  const auto kernel = many      ? EmbeddingKernel<T, Out, kWidth, kManyRows>
                      : vectors ? EmbeddingKernel<T, Out, kWidth, 1>
                                : EmbeddingKernel<T, Out, 1, 1>;
  Launch(stream, dim3(static_cast<unsigned>((a.rows + rows - 1) / rows)),
         dim3(static_cast<unsigned>(threads)), 0, kernel, a);
}

}  // namespace

void Embedding(const EmbeddingArgs& args, CudaStream& stream) {
  if (args.y.dim[0] == 0) return;
  DispatchDType(args.table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchDType(args.y.dtype, [&](auto out) {
      LaunchEmbedding<T, typename decltype(out)::type>(args, stream);
    });
  });
}

}  // namespace quintet::cuda
