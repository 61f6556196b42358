#include <algorithm>

#include "kernels/cuda.cuh"
#include "kernels/cuda_ops.h"

namespace quintet::cuda {
namespace {

template <typename T, typename Out>
struct EmbedArgs {
  const T* table;
  const T* position_table;  // or null
  const int32_t* ids;
  const int32_t* chosen;
  const int32_t* positions;
  int32_t* history;  // or null
  const int32_t* slots;
  Out* y;
  int64_t table_stride, position_stride, y_stride, id_step, position_step;
  int d;
  float scale;
};

// What: y[r] = scale * table[ids[r]] + position_table[positions[r]]; an id below 0 stands for one
// of the chosen; history[slots[r]] = id. Shapes: tables [.., d] T, y [rows, d] Out. Math: f32; one
// product and one sum, rounded once to Out. Map: a block a row; a thread takes kWidth neighbours at
// a time: 8 where the rows allow vectors of 16 bytes, otherwise 1. Bound: rows * d * (sizeof(T) per
// table + sizeof(Out)) bytes. Spec: tests/kernels/embedding_test.cc.
template <typename T, typename Out, int kWidth>
__global__ void EmbeddingKernel(EmbedArgs<T, Out> a) {
  WaitForInputs();
  const int64_t row = blockIdx.x;
  const int32_t given = a.ids[row * a.id_step];
  const int32_t id = given >= 0 ? given : max(0, a.chosen[-1 - given]);
  if (a.history != nullptr && threadIdx.x == 0 && a.slots[row] >= 0) a.history[a.slots[row]] = id;
  const T* table = a.table + id * a.table_stride;
  const T* added = a.position_table == nullptr
                       ? nullptr
                       : a.position_table + a.positions[row * a.position_step] * a.position_stride;
  Out* y = a.y + row * a.y_stride;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < a.d; i += step) {
    float value[kWidth];
    LoadNeighbours(table + i, value);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] = __fmul_rn(value[j], a.scale);
    if (added != nullptr) {
      float more[kWidth];
      LoadNeighbours(added + i, more);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) value[j] = __fadd_rn(value[j], more[j]);
    }
    StoreNeighbours(value, y + i);
  }
}

template <typename T, typename Out>
void LaunchEmbedding(const EmbeddingArgs& args, Stream& stream) {
  EmbedArgs<T, Out> a{};
  a.table = args.table.as<T>();
  a.ids = stream.Twin(args.ids.as<const int32_t>());
  a.chosen = args.chosen.as<const int32_t>();
  a.id_step = args.ids.stride[0];
  a.table_stride = args.table.stride[0];
  bool vectors = Vectorizable(args.table) && Vectorizable(args.y);
  if (args.positions.defined()) {
    a.position_table = args.position_table.as<T>();
    a.positions = stream.Twin(args.positions.as<const int32_t>());
    a.position_step = args.positions.stride[0];
    a.position_stride = args.position_table.stride[0];
    vectors = vectors && Vectorizable(args.position_table);
  }
  if (args.history.defined()) {
    a.history = args.history.as<int32_t>();
    a.slots = stream.Twin(args.slots.data());
  }
  a.y = args.y.as<Out>();
  a.y_stride = args.y.stride[0];
  a.d = static_cast<int>(args.y.dim[1]);
  a.scale = args.scale;
  constexpr int kWidth = 8;
  vectors = vectors && a.d % kWidth == 0;
  const int width = vectors ? kWidth : 1;
  const int threads = std::clamp((a.d / width + 31) / 32 * 32, 32, 256);
  const unsigned rows = static_cast<unsigned>(args.y.dim[0]);
  Launch(stream, dim3(rows), dim3(static_cast<unsigned>(threads)), 0,
         vectors ? EmbeddingKernel<T, Out, kWidth> : EmbeddingKernel<T, Out, 1>, a);
}

}  // namespace

void Embedding(const EmbeddingArgs& args, Stream& stream) {
  if (args.y.dim[0] == 0) return;
  DispatchDType(args.table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    DispatchDType(args.y.dtype, [&](auto out) {
      LaunchEmbedding<T, typename decltype(out)::type>(args, stream);
    });
  });
}

}  // namespace quintet::cuda
