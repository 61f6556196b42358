// bf16 / f16 attention for many queries on Hopper (wgmma, TMA): launcher for calls without a
// position bias or with a bias table. Calls with ALiBi are in hopper_alibi.cu, those with FIRE in
// hopper_fire.cu: the files are separate because nvcc takes about a minute for each.
#include "kernels/attention/hopper_kernel.cuh"

namespace quintet::cuda {

template <typename T>
void AttendHopper(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  switch (call.bias.kind) {
    case BiasKind::kAlibi:
      return AttendHopperAlibi<T>(call, rows_total, stream);
    case BiasKind::kFire:
      return AttendHopperFire<T>(call, rows_total, stream);
    default:
      return LaunchHopperForShape<T, BiasKind::kNone>(call, rows_total, stream);
  }
}
template void AttendHopper<__nv_bfloat16>(const AttentionCall&, int64_t, CudaStream&);
template void AttendHopper<__half>(const AttentionCall&, int64_t, CudaStream&);

}  // namespace quintet::cuda
