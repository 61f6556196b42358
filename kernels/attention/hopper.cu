// bf16 / f16 attention for many queries on Hopper (wgmma, TMA): launcher for calls without a
// position bias or with a bias table. attention/hopper_alibi_fire.cu has ALiBi and FIRE.
#include "kernels/attention/hopper_kernel.cuh"

namespace quintet::cuda {

template <typename T>
void AttendHopper(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  if (call.bias.kind == BiasKind::kAlibi || call.bias.kind == BiasKind::kFire) {
    return AttendHopperFunction<T>(call, rows_total, stream);
  }
  const bool cached = call.kv_lens != nullptr;
  if (call.head_dim <= 64) {
    using Cached = HopperTraits<64, 2, 128, 2, true>;
    using Packed = HopperTraits<64, 3, 128, 2, true>;
    cached ? LaunchHopper<T, Cached, true, BiasKind::kNone>(call, rows_total, stream)
           : LaunchHopper<T, Packed, false, BiasKind::kNone>(call, rows_total, stream);
  } else {
    using S = HopperTraits<128, 2, 128, 2, true>;
    cached ? LaunchHopper<T, S, true, BiasKind::kNone>(call, rows_total, stream)
           : LaunchHopper<T, S, false, BiasKind::kNone>(call, rows_total, stream);
  }
}
template void AttendHopper<__nv_bfloat16>(const AttentionCall&, int64_t, Stream&);
template void AttendHopper<__half>(const AttentionCall&, int64_t, Stream&);

}  // namespace quintet::cuda
