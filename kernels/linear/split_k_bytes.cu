// Split-K GEMM with int8 and fp8 weights, which the kernel converts to bf16 in registers: the
// launch.
#include "kernels/linear/split_k.cuh"

namespace quintet::cuda {
namespace {

template <SplitKKind kKind, SplitKWeights kWeights>
void LaunchKind(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  constexpr SplitKAdapters kNone = SplitKAdapters::kNone;
  using T = __nv_bfloat16;
  const auto launch =
      plan.rows == 16   ? LaunchSplitKTile<T, SplitKTile<16, true, kKind, kNone, kWeights>>
      : plan.rows == 32 ? LaunchSplitKTile<T, SplitKTile<32, true, kKind, kNone, kWeights>>
                        : LaunchSplitKTile<T, SplitKTile<64, true, kKind, kNone, kWeights>>;
  launch(args, plan, stream);
}

template <SplitKWeights kWeights>
void LaunchWeights(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const auto launch = SplitKIsLarge(*args.w) ? LaunchKind<SplitKKind::kLarge, kWeights>
                                             : LaunchKind<SplitKKind::kSmall, kWeights>;
  launch(args, plan, stream);
}

}  // namespace

void LaunchSplitKBytes(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const auto launch = WeightDType(args.w->type()) == DType::kF8
                          ? LaunchWeights<SplitKWeights::kE4m3>
                          : LaunchWeights<SplitKWeights::kInt8>;
  launch(args, plan, stream);
}

}  // namespace quintet::cuda
