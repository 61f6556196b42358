// The Hopper attention kernel with biases that are functions of the positions everywhere, ALiBi and
// FIRE. What FIRE keeps of a query's place takes registers, so two warpgroups compute.
#include "kernels/attention_hopper_kernel.cuh"

namespace quintet::cuda {
namespace {

template <typename T, int kDim>
void LaunchFunction(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  using S = HopperSizes<kDim, 2, 128, 2, true>;
  call.kv_lens != nullptr ? LaunchHopper<T, S, true, true>(call, rows_total, stream)
                          : LaunchHopper<T, S, false, true>(call, rows_total, stream);
}

}  // namespace

template <typename T>
void AttendHopperFunction(const AttentionCall& call, int64_t rows_total, Stream& stream) {
  call.head_dim <= 64 ? LaunchFunction<T, 64>(call, rows_total, stream)
                      : LaunchFunction<T, 128>(call, rows_total, stream);
}
template void AttendHopperFunction<__nv_bfloat16>(const AttentionCall&, int64_t, Stream&);
template void AttendHopperFunction<__half>(const AttentionCall&, int64_t, Stream&);

}  // namespace quintet::cuda
