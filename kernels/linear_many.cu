// Products of many rows with bf16 or f16 weights on Hopper: the kernel and its launch.
#include <algorithm>

#include "kernels/linear_many_group.cuh"

namespace quintet::cuda {
namespace {

// What: y = activation(x Wg^T) * (x Wu^T), W the rows of Wg and then those of Wu; or keys and
// values x W^T scattered to their places.
// Shapes: x [rows, k] T, W [2 columns, k] or [columns, k] T, y [rows, columns] T or as
// ScatterOutput says; k and columns multiples of 8, rows of x and y at 16-byte boundaries.
// Math: products on tensor cores, f32 sums over k in ascending order, the same bits from run to
// run; gate and up are not rounded before they meet. GELU (tanh) and SiLU by one exponential and
// half a reciprocal.
// Map: as many blocks as multiprocessors take tiles of y by turns. One thread asks for boxes of 64
// values of k of 128 rows of x and 256 of W into a ring of four stages; two warpgroups multiply, 64
// x 256 sums each in registers. Then every warp stages 16 rows by 64 columns at a time in shared
// memory of its own and stores them 16 bytes a lane, while the next tile is already copied.
// Bound: products: 16384 x 10240 x 2048, 0.69 TFLOP, 1.0 ms at what cuBLASLt reaches on an H200
// (690 TFLOP/s, where the card's power ends).
// Spec: tests/kernels/linear_many_test.cc.
//
// Versions on an H200, bf16, us of a gated product, rows x n x k 16384x10240x2048 | 2048x10240x2048
// | 16384x4096x768; cuBLASLt in pieces of 1024 rows and a pass over each 1273 | 157 | 294, all of
// it by one cuBLASLt product without the pass 989 | 124 | 138.
//   1 y by bulk stores from shared memory: predicted 1000 | 125 | 150, seen 1011 | 131 | 172: each
//     tile after the second of a warp waits about 1 us for its bulk store to be read, behind
//     copies. Clusters of two blocks that share W, bands of 4 to 64 tiles, one warpgroup up to
//     three stages ahead of the other: no difference. Three stages: 1 % slower.
//   2 y by stores of lanes, a reciprocal for two values, one block a cluster: predicted 990 | 127 |
//     160, seen 1004 | 131 | 168. Without an activation 983 (cuBLASLt, which leaves gate and up
//     apart, 1006 in the same run): the rest is GELU. Plain products with the same tiles lose to
//     cuBLASLt (16384x6144x2048 649 of 582, 16384x2048x2048 added to f32 246 of 219) or equal it
//     (16384x2048x5120), and are left to it. Keys and values of all layers, us at 4,096 | 16,384
//     tokens: T5-base 294 | 1179, now 194 | 835, Flan-T5-XL 2646 | 11733, now 2585 | 9980.
template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    ManyRowsKernel(const __grid_constant__ ManyRowsArgs a,
                   const __grid_constant__ ManyRowsMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<ManyRowsMemory<S>*>(shared);
  if (threadIdx.x == 0) {
    AskForMap(maps.w);
    AskForMap(maps.x);
    for (int stage = 0; stage < S::kStages; ++stage) {
      InitBarrier(SharedAddress(&memory.full[stage]), 1);
      InitBarrier(SharedAddress(&memory.empty[stage]), S::kGroups * 4);  // warps
    }
    ShowBarriers();
  }
  __syncthreads();
  WaitForInputs();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4) {
    GiveRegisters<40>();
    if (threadIdx.x == 0) CopyManyRows<S>(a, maps, memory);
  } else {
    TakeRegisters<232>();
    ManyRowsGroup<S>(a, memory, warp / 4 - 1).Run();
  }
#endif
}

template <typename S>
ManyRowsArgs ArgsOf(const LinearArgs& args, Stream& stream) {
  const LinearWeight& w = *args.w;
  ManyRowsArgs a{};
  a.rows = static_cast<int>(args.x.dim[0]);
  a.columns = static_cast<int>(S::kGated ? w.n() / 2 : w.n());
  a.k = static_cast<int>(w.k());
  a.activation = args.activation;
  a.y = args.y.data;
  a.y_stride = args.y.stride[0];
  if (S::kScattered) {
    a.y = args.scatter.base;
    a.row_offset = stream.Twin(args.scatter.row_offset);
    a.chunk_offset = stream.Twin(args.scatter.chunk_offset);
    a.chunk = static_cast<int>(args.scatter.chunk);
  }
  return a;
}

template <typename S>
void LaunchSized(const LinearArgs& args, Stream& stream) {
  Device& device = stream.device();
  const ManyRowsArgs a = ArgsOf<S>(args, stream);
  const LinearWeight& w = *args.w;
  ManyRowsMaps maps{};
  if (!EncodeBoxes({w.panels(), w.n(), 1, w.k(), w.k(), 0}, S::kChannels / 2, device, &maps.w) ||
      !EncodeBoxes({args.x.data, a.rows, 1, w.k(), args.x.stride[0], 0}, S::kRows, device,
                   &maps.x)) {
    return;
  }
  const int blocks = std::min(ManyRowsTiles<S>(a).count(), device.multiprocessors());
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), sizeof(ManyRowsMemory<S>),
         ManyRowsKernel<S>, a, maps);
}

template <typename T>
void LaunchTyped(const LinearArgs& args, Stream& stream) {
  if (args.w->gated()) {
    LaunchSized<ManyRowsSizes<T, ManyRowsOutput::kGated>>(args, stream);
  } else {
    LaunchSized<ManyRowsSizes<T, ManyRowsOutput::kScattered>>(args, stream);
  }
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether the kernel has this epilogue.
bool Finishes(const LinearArgs& args) {
  const DType type = WeightDType(args.w->type());
  if (args.alpha != 1.0f || args.bias.defined()) return false;
  if (args.scatter.base != nullptr) {
    return args.scatter.dtype == type && args.scatter.chunk % 8 == 0 && !args.w->gated() &&
           args.activation == Activation::kNone;
  }
  return args.w->gated() && args.y.dtype == type && Vectorizable(args.y) &&
         !args.residual.defined();
}

}  // namespace

// Fewer rows do not fill the multiprocessors: 1024 of 10240 x 2048 take 75 us here, 73 by cuBLASLt
// with the pass, 512 of them 47 and 37. What is scattered has many columns.
int64_t LeastManyRows(const LinearWeight& w) { return w.gated() ? 1024 : 256; }

bool ManyRowsTake(const LinearArgs& args, const Device& device) {
  const LinearWeight& w = *args.w;
  const int64_t columns = w.gated() ? w.n() / 2 : w.n();
  if (!device.hopper() || !IsHalf(w.type()) || w.k() % 8 != 0 || columns % 8 != 0) return false;
  if (args.x.dim[0] < LeastManyRows(w) || !Aligned(w.panels()) || !Finishes(args)) return false;
  return args.x.dtype != WeightDType(w.type()) || Vectorizable(args.x);
}

void ManyRowsLinear(const LinearArgs& args, Stream& stream) {
  args.w->type() == WeightType::kBF16 ? LaunchTyped<__nv_bfloat16>(args, stream)
                                      : LaunchTyped<__half>(args, stream);
}

}  // namespace quintet::cuda
