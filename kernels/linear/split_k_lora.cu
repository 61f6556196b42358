// Split-K GEMM with LoRA terms: which calls it supports, and the launch.
#include "kernels/linear/split_k.cuh"

namespace quintet::cuda {
namespace {

constexpr int64_t kMaxRank = 64;
constexpr int kMaxBlocks = 4;  // of SplitKOneLora
// Maximum shared memory of a CTA so that one CTA (kOneSharedBytes) or two CTAs (kTwoSharedBytes)
// are resident on an SM.
constexpr int kOneSharedBytes = 220 << 10, kTwoSharedBytes = 110 << 10;

int64_t CtasOf(const LinearArgs& args, const SplitKPlan& plan) {
  const int64_t row_tiles = (args.x.dim[0] + plan.rows - 1) / plan.rows;
  return args.w->n() / 64 * plan.splits * row_tiles;
}

template <typename T, SplitKKind kKind, SplitKAdapters kAdapters, int kRows>
void LaunchTile(const LinearArgs& args, SplitKPlan plan, CudaStream& stream) {
  using S = SplitKTile<kRows, std::is_same_v<T, __nv_bfloat16>, kKind, kAdapters>;
  SplitKArgs a = SplitKArgsOf(args, stream);
  // `one`: whether one CTA instead of two is resident on an SM. kEach: CTAs wait for each other, so
  // all must be resident at once, although clusters may leave some SMs unused. kOne: two CTAs, as
  // without LoRA terms, unless the stages of the plan need the memory of one.
  const int64_t ctas = CtasOf(args, plan), sms = stream.num_sms();
  const bool one = S::kOneLora        ? plan.stages * S::kStageBytes > kTwoSharedBytes
                   : plan.splits == 1 ? ctas <= sms
                                      : 4 * ctas <= 3 * sms;
  const int most = one ? kOneSharedBytes : kTwoSharedBytes;
  for (a.stages = plan.stages; a.stages > 2; --a.stages) {
    if (SplitKSmem::Of<S>(a, plan.splits).bytes <= most) break;
  }
  plan.stages = a.stages;
  LaunchSplitKTile<T, S>(args, plan, stream);
}

template <typename T, SplitKKind kKind, SplitKAdapters kAdapters>
void LaunchKind(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const auto launch = plan.rows == 16   ? LaunchTile<T, kKind, kAdapters, 16>
                      : plan.rows == 32 ? LaunchTile<T, kKind, kAdapters, 32>
                                        : LaunchTile<T, kKind, kAdapters, 64>;
  launch(args, plan, stream);
}

template <typename T, SplitKAdapters kAdapters>
void LaunchTyped(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const auto launch = SplitKIsLarge(*args.w) ? LaunchKind<T, SplitKKind::kLarge, kAdapters>
                                             : LaunchKind<T, SplitKKind::kSmall, kAdapters>;
  launch(args, plan, stream);
}

template <SplitKAdapters kAdapters>
void LaunchAdapters(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  const auto launch = args.w->type() == WeightType::kF16 ? LaunchTyped<__half, kAdapters>
                                                         : LaunchTyped<__nv_bfloat16, kAdapters>;
  launch(args, plan, stream);
}

// Whether the terms are computed for one adapter (linear/split_k_one_lora.cuh).
bool IsOne(const LinearArgs& args) {
  return args.lora.one_adapter && SplitKOneLoraBlocks(args) <= kMaxBlocks;
}

}  // namespace

bool SplitKLoraFits(const LinearArgs& args, const SplitKPlan& plan, const CudaStream& stream) {
  const WeightView& w = *args.w;
  const LoraWeight& lora = *args.lora.weight;
  if (lora.dtype != WeightDType(w.type()) || lora.max_rank > kMaxRank) return false;
  if (lora.n() != w.n() || lora.part_columns % 64 != 0) return false;
  if (IsOne(args)) return true;
  return args.lora.words.defined() && 2 * CtasOf(args, plan) <= 3 * int64_t{stream.num_sms()};
}

int SplitKOneLoraBlocks(const LinearArgs& args) {
  int blocks = 1;
  while (blocks * kLoraRankMultiple < args.lora.weight->max_rank) blocks *= 2;
  return args.w->gated() ? 2 * blocks : blocks;
}

void LaunchSplitKLora(const LinearArgs& args, const SplitKPlan& plan, CudaStream& stream) {
  IsOne(args) ? LaunchAdapters<SplitKAdapters::kOne>(args, plan, stream)
              : LaunchAdapters<SplitKAdapters::kEach>(args, plan, stream);
}

}  // namespace quintet::cuda
