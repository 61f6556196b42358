// Persistent GEMM for many rows with bf16 or f16 weights on Hopper (linear/persistent_kernel.cuh).
#include <algorithm>

#include "kernels/linear/persistent_kernel.cuh"

namespace quintet::cuda {
namespace {

template <typename S>
PersistentArgs ArgsOf(const LinearArgs& args, CudaStream& stream) {
  const WeightView& w = *args.w;
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
    a.y_is_e4m3 = args.scatter.dtype == DType::kF8;
  }
  return a;
}

template <typename S>
void LaunchSized(const LinearArgs& args, CudaStream& stream) {
  LaunchPersistent<S>(ArgsOf<S>(args, stream), args.x, *args.w, stream);
}

template <typename T>
void LaunchTyped(const LinearArgs& args, CudaStream& stream) {
  if (args.w->gated()) {
    LaunchSized<PersistentTile<T, T, PersistentOutput::kGated>>(args, stream);
  } else {
    LaunchSized<PersistentTile<T, T, PersistentOutput::kScattered>>(args, stream);
  }
}

bool Aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Whether the persistent GEMM kernel supports the epilogue and the output of this call.
bool Finishes(const LinearArgs& args) {
  const DType type = WeightDType(args.w->type());
  if (args.alpha != 1.0f || args.bias.defined()) return false;
  if (args.scatter.base != nullptr) {
    const bool stores = args.scatter.dtype == type || args.scatter.dtype == DType::kF8;
    return stores && args.scatter.chunk % 8 == 0 && !args.w->gated() &&
           args.activation == Activation::kNone;
  }
  return args.w->gated() && args.y.dtype == type && Vectorizable(args.y) &&
         !args.residual.defined();
}

}  // namespace

// The smallest number of rows for which the persistent GEMM kernel is used; with fewer rows its
// tiles do not occupy all SMs. For a gated W of 10240 x 2048, this kernel is about as fast as
// cuBLASLt with an activation pass at 1024 rows (75 us and 73 us), and slower at 512 rows (47 us
// and 37 us). For scattered outputs 256 rows are enough, because they have many columns and
// therefore many tiles.
int64_t MinPersistentRows(const WeightView& w) { return w.gated() ? 1024 : 256; }

bool PersistentTakes(const LinearArgs& args, const CudaStream& stream) {
  const WeightView& w = *args.w;
  const int64_t columns = w.gated() ? w.n() / 2 : w.n();
  if (!stream.hopper() || !IsHalf(w.type()) || w.k() % 8 != 0 || columns % 8 != 0) return false;
  if (args.x.dim[0] < MinPersistentRows(w) || !Aligned(w.panels()) || !Finishes(args)) return false;
  return args.x.dtype != WeightDType(w.type()) || Vectorizable(args.x);
}

void PersistentLinear(const LinearArgs& args, CudaStream& stream) {
  args.w->type() == WeightType::kBF16 ? LaunchTyped<__nv_bfloat16>(args, stream)
                                      : LaunchTyped<__half>(args, stream);
}

}  // namespace quintet::cuda
