#include "kernels/sampling/log_prob_fold_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sampling/log_prob_fold_cpu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/linear/activation-inl.h"
#include "kernels/linear/linear_cpu.h"

HWY_BEFORE_NAMESPACE();
namespace quintet::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Adds kPanelColumns logits to the max and sum of `summary`. Returns the maximum of these logits.
float FoldSums(const float* HWY_RESTRICT logits, cpu::RowSummary* summary) {
  const hn::CappedTag<float, 16> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto maximum = hn::Load(d, logits);
  for (int64_t c = lanes; c < cpu::kPanelColumns; c += lanes) {
    maximum = hn::Max(maximum, hn::Load(d, logits + c));
  }
  const float panel_max = hn::GetLane(hn::MaxOfLanes(d, maximum));
  if (panel_max == -std::numeric_limits<float>::infinity()) return panel_max;
  if (!(panel_max <= summary->max)) {
    summary->sum *= std::exp(summary->max - panel_max);
    summary->max = panel_max;
  }
  const auto shift = hn::Set(d, summary->max);
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < cpu::kPanelColumns; c += lanes) {
    sum = hn::Add(sum, activation::Exp(d, hn::Sub(hn::Load(d, logits + c), shift)));
  }
  summary->sum += hn::GetLane(hn::SumOfLanes(d, sum));
  return panel_max;
}

}  // namespace quintet::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quintet {

HWY_EXPORT(FoldSums);

namespace cpu {
namespace {

void Insert(TokenLogit candidate, int32_t top, int32_t* count, TokenLogit* best) {
  if (*count == top && !Better(candidate, best[top - 1])) return;
  int32_t at = *count < top ? (*count)++ : top - 1;
  for (; at > 0 && Better(candidate, best[at - 1]); --at) best[at] = best[at - 1];
  best[at] = candidate;
}

}  // namespace

void FoldLogits(const float* logits, int32_t token, int32_t vocab, int32_t top, RowSummary* summary,
                TokenLogit* best) {
  const float maximum = HWY_DYNAMIC_DISPATCH(FoldSums)(logits, summary);
  if (top == 0 || (summary->count == top && maximum <= best[top - 1].logit)) return;
  const int32_t tokens = std::min<int32_t>(kPanelColumns, vocab - token);
  for (int32_t c = 0; c < tokens; ++c) {
    const float logit = std::isnan(logits[c]) ? -std::numeric_limits<float>::infinity() : logits[c];
    Insert({logit, token + c}, top, &summary->count, best);
  }
}

void MergeSummary(const RowSummary& from, const TokenLogit* from_best, int32_t top,
                  RowSummary* summary, TokenLogit* best) {
  for (int32_t i = 0; i < from.count; ++i) Insert(from_best[i], top, &summary->count, best);
  if (from.max == -std::numeric_limits<float>::infinity()) return;
  if (from.max <= summary->max) {
    summary->sum += from.sum * std::exp(from.max - summary->max);
  } else {
    summary->sum = summary->sum * std::exp(summary->max - from.max) + from.sum;
    summary->max = from.max;
  }
}

}  // namespace cpu
}  // namespace quintet
#endif
