// Gated GEMM for 65 to 128 rows with bf16 or f16 weights on Hopper: when it is used, and the
// launch. The kernel is in linear/two_cta_gated.cuh.
#include "kernels/linear/two_cta_gated.cuh"

namespace quintet::cuda {
namespace {

using S = TwoCtaGatedTile;

// Number of CTAs of the launch.
int64_t Blocks(const WeightView& w) { return (w.n() / 2 + S::kChannels - 1) / S::kChannels * 2; }

template <typename T, bool kPlain>
void LaunchTyped(const LinearArgs& args, CudaStream& stream) {
  const SplitKArgs a = SplitKArgsOf(args, stream);
  const WeightView& w = *args.w;
  SplitKTensorMaps maps{};
  if (!MakeTensorMap({w.panels(), w.n(), 1, w.k(), w.k(), 0}, S::kBox, stream, &maps.w) ||
      !MakeTensorMap({args.x.data, a.rows, 1, w.k(), args.x.stride[0], 0}, S::kRows, stream,
                     &maps.x)) {
    return;
  }
  LaunchClusters(stream, dim3(static_cast<unsigned>(Blocks(w))), dim3(2), dim3(S::kThreads),
                 size_t{TwoCtaGatedSmem::bytes}, TwoCtaGatedKernel<T, kPlain>, a, maps);
}

}  // namespace

bool TwoCtaGatedFits(const WeightView& w, int64_t rows, const CudaStream& stream) {
  if (!stream.hopper() || !IsHalf(w.type()) || !w.gated() || w.k() % 8 != 0) return false;
  if (rows <= 64 || rows > 2 * S::kRows || rows * w.n() * w.k() <= kSplitKMaxMultiplyAdds) {
    return false;
  }
  const int64_t units = stream.num_sms();
  return Blocks(w) <= units && Blocks(w) * 4 >= units * 3;
}

void LaunchTwoCtaGated(const LinearArgs& args, CudaStream& stream) {
  const WeightType type = args.w->type();
  const bool plain = args.activation == Activation::kGeluTanh && !args.bias.defined() &&
                     args.y.dtype == WeightDType(type);
  const auto launch =
      type == WeightType::kF16
          ? (plain ? LaunchTyped<__half, true> : LaunchTyped<__half, false>)
          : (plain ? LaunchTyped<__nv_bfloat16, true> : LaunchTyped<__nv_bfloat16, false>);
  launch(args, stream);
}

}  // namespace quintet::cuda
