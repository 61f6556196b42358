// Launcher of the Hopper attention kernel for ALiBi.
#include "kernels/attention/hopper_kernel.cuh"

namespace quintet::cuda {

template <typename T>
void AttendHopperAlibi(const AttentionCall& call, int64_t rows_total, CudaStream& stream) {
  if (call.max_norms == nullptr) {
    return LaunchHopperForShape<T, BiasKind::kAlibi>(call, rows_total, stream);
  }
  using Many = SkippingTiles<HopperTraits<64, 3, 128, 2, true>>;
  using Wide = SkippingTiles<HopperTraits<128, 2, 128, 2, true>>;
  call.head_dim <= 64 ? LaunchHopper<T, Many, false, BiasKind::kAlibi>(call, rows_total, stream)
                      : LaunchHopper<T, Wide, false, BiasKind::kAlibi>(call, rows_total, stream);
}
template void AttendHopperAlibi<__nv_bfloat16>(const AttentionCall&, int64_t, CudaStream&);
template void AttendHopperAlibi<__half>(const AttentionCall&, int64_t, CudaStream&);

}  // namespace quintet::cuda
