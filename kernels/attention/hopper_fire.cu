// Launcher of the Hopper attention kernel for FIRE.
#include "kernels/attention/hopper_kernel.cuh"

namespace quintet::cuda {

template <typename T>
void AttendHopperFire(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  LaunchHopperForShape<T, BiasKind::kFire>(call, rows_total, stream);
}
template void AttendHopperFire<__nv_bfloat16>(const AttentionCall&, int64_t, CudaStream&);
template void AttendHopperFire<__half>(const AttentionCall&, int64_t, CudaStream&);

}  // namespace quintet::cuda
