// Launcher of the Hopper attention kernel for ALiBi and FIRE, whose bias changes at every distance
// (that of a table is constant from its saturation distance on).
#include "kernels/attention/hopper_kernel.cuh"

namespace quintet::cuda {
namespace {

template <typename T, BiasKind kFunction, typename Cached, typename Packed>
void LaunchFunction(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  call.kv_lens != nullptr ? LaunchHopper<T, Cached, true, kFunction>(call, rows_total, stream)
                          : LaunchHopper<T, Packed, false, kFunction>(call, rows_total, stream);
}

}  // namespace

template <typename T>
void AttendHopperFunction(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  using Few = HopperTraits<64, 2, 128, 2, true>;
  using Many = HopperTraits<64, 3, 128, 2, true>;
  using Wide = HopperTraits<128, 2, 128, 2, true>;
  if (call.max_norms != nullptr) {
    return call.head_dim <= 64 ? LaunchHopper<T, SkippingTiles<Many>, false, BiasKind::kAlibi>(
                                     call, rows_total, stream)
                               : LaunchHopper<T, SkippingTiles<Wide>, false, BiasKind::kAlibi>(
                                     call, rows_total, stream);
  }
  const bool fire = call.bias.kind == BiasKind::kFire;
  const auto launch = call.head_dim <= 64 ? fire ? LaunchFunction<T, BiasKind::kFire, Few, Many>
                                                 : LaunchFunction<T, BiasKind::kAlibi, Few, Many>
                      : fire ? LaunchFunction<T, BiasKind::kFire, Wide, Wide>
                                          : LaunchFunction<T, BiasKind::kAlibi, Wide, Wide>;
  launch(call, rows_total, stream);
}
template void AttendHopperFunction<__nv_bfloat16>(const AttentionCall&, int64_t, Stream&);
template void AttendHopperFunction<__half>(const AttentionCall&, int64_t, Stream&);

}  // namespace quintet::cuda
