// Persistent GEMM for many rows with bf16 or f16 weights on Hopper: the kernel and its launch.
#include <algorithm>

#include "kernels/linear/persistent_consumer.cuh"

namespace quintet::cuda {
namespace {

// Persistent GEMM: y = activation(x Wg^T) * (x Wu^T), where the rows of W are those of Wg and then
// those of Wu; or K and V = x W^T scattered to the KV cache.
// Shapes: x [rows, k] T, W [2 columns, k] or [columns, k] T, y [rows, columns] T or as in
// ScatterOutput; k and columns are multiples of 8, rows of x and y begin on 16-byte boundaries.
// Accumulation: wgmma in f32 over k in ascending order, bit-identical from run to run. Gate and up
// are multiplied before they are rounded. GELU (tanh) and SiLU take one exponential per value and
// one reciprocal for every two values.
// Mapping: one CTA per SM loops over output tiles (PersistentTileScheduler). A producer thread
// issues TMA loads into four pipeline stages; a stage holds 64 values of k for 128 rows of x and
// 256 rows of W. Each of the two consumer warpgroups has 64 x 256 accumulators. In the epilogue
// every warp stages 16 rows by 64 columns in its own shared memory and stores 16 bytes per lane,
// while the producer already loads the next tile.
// Bound: tensor cores. 16384 rows with W of 10240 x 2048 are 0.69 TFLOP, 1.0 ms at the rate of
// cuBLASLt on an H200 (690 TFLOP/s, limited by power).
// Tests: tests/kernels/linear/persistent_test.cc. Measurements: linear/NOTES.md.
template <typename S>
__global__ void __launch_bounds__(S::kThreads, 1)
    PersistentKernel(const __grid_constant__ PersistentArgs a,
                     const __grid_constant__ PersistentTensorMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char shared[];
  auto& memory = *reinterpret_cast<PersistentSmem<S>*>(shared);
  if (threadIdx.x == 0) {
    PrefetchTensorMap(maps.w);
    PrefetchTensorMap(maps.x);
    for (int stage = 0; stage < S::kStages; ++stage) {
      BarrierInit(SharedAddress(&memory.full[stage]), 1);
      BarrierInit(SharedAddress(&memory.empty[stage]), S::kGroups * 4);  // warps
    }
    FenceBarrierInit();
  }
  __syncthreads();
  WaitOnDependentGrids();
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp < 4) {
    WarpgroupRegDealloc<40>();
    if (threadIdx.x == 0) RunPersistentProducer<S>(a, maps, memory);
  } else {
    WarpgroupRegAlloc<232>();
    PersistentConsumer<S>(a, memory, warp / 4 - 1).Run();
  }
#endif
}

template <typename S>
PersistentArgs ArgsOf(const LinearArgs& args, Stream& stream) {
  const LinearWeight& w = *args.w;
  PersistentArgs a{};
  a.rows = static_cast<int>(args.x.dim[0]);
  a.columns = static_cast<int>(S::kGated ? w.n() / 2 : w.n());
  a.k = static_cast<int>(w.k());
  a.activation = args.activation;
  a.y = args.y.data;
  a.y_stride = args.y.stride[0];
  if (S::kScattered) {
    a.y = args.scatter.base;
    a.row_offset = stream.DevicePtr(args.scatter.row_offset);
    a.chunk_offset = stream.DevicePtr(args.scatter.chunk_offset);
    a.chunk = static_cast<int>(args.scatter.chunk);
  }
  return a;
}

template <typename S>
void LaunchSized(const LinearArgs& args, Stream& stream) {
  Device& device = stream.device();
  const PersistentArgs a = ArgsOf<S>(args, stream);
  const LinearWeight& w = *args.w;
  PersistentTensorMaps maps{};
  if (!MakeTensorMap({w.panels(), w.n(), 1, w.k(), w.k(), 0}, S::kChannels / 2, device, &maps.w) ||
      !MakeTensorMap({args.x.data, a.rows, 1, w.k(), args.x.stride[0], 0}, S::kRows, device,
                     &maps.x)) {
    return;
  }
  const int blocks = std::min(PersistentTileScheduler<S>(a).count(), device.num_sms());
  Launch(stream, dim3(static_cast<unsigned>(blocks)), dim3(S::kThreads), sizeof(PersistentSmem<S>),
         PersistentKernel<S>, a, maps);
}

template <typename T>
void LaunchTyped(const LinearArgs& args, Stream& stream) {
  if (args.w->gated()) {
    LaunchSized<PersistentTile<T, PersistentOutput::kGated>>(args, stream);
  } else {
    LaunchSized<PersistentTile<T, PersistentOutput::kScattered>>(args, stream);
  }
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether the persistent GEMM kernel supports the epilogue and the output of this call.
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

// The smallest number of rows for which the persistent GEMM kernel is used; with fewer rows its
// tiles do not occupy all SMs. For a gated W of 10240 x 2048 and 1024 rows, this kernel takes 75
// us, and cuBLASLt with an activation pass 73 us; for 512 rows, 47 us and 37 us. For scattered
// outputs 256 rows are enough, because they have many columns and therefore many tiles.
int64_t MinPersistentRows(const LinearWeight& w) { return w.gated() ? 1024 : 256; }

bool PersistentTakes(const LinearArgs& args, const Device& device) {
  const LinearWeight& w = *args.w;
  const int64_t columns = w.gated() ? w.n() / 2 : w.n();
  if (!device.hopper() || !IsHalf(w.type()) || w.k() % 8 != 0 || columns % 8 != 0) return false;
  if (args.x.dim[0] < MinPersistentRows(w) || !Aligned(w.panels()) || !Finishes(args)) return false;
  return args.x.dtype != WeightDType(w.type()) || Vectorizable(args.x);
}

void PersistentLinear(const LinearArgs& args, Stream& stream) {
  args.w->type() == WeightType::kBF16 ? LaunchTyped<__nv_bfloat16>(args, stream)
                                      : LaunchTyped<__half>(args, stream);
}

}  // namespace quintet::cuda
