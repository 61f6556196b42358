#include "engine/step_pace.h"

#include <algorithm>

namespace quintet {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 40;
constexpr int64_t kIdleStepUs = 20'000;  // time limit of a step when no stream waits

}  // namespace

int64_t WorkRate::WorkFor(int64_t us) const {
  const double work = per_us_ * static_cast<double>(std::max<int64_t>(us, 0));
  return std::max(min_work_, static_cast<int64_t>(std::min(work, static_cast<double>(kNoLimit))));
}

void WorkRate::Record(int64_t work, int64_t us) {
  const double rate = static_cast<double>(work) / static_cast<double>(std::max<int64_t>(us, 1));
  per_us_ = per_us_ == 0.0 ? rate : 0.5 * (per_us_ + rate);
}

int64_t StepPace::PrefillUs(bool streams) const {
  if (!streams) return kIdleStepUs;
  return prefill_share_ == 0.0 ? kNoLimit : static_cast<int64_t>(prefill_share_ * decode_us_);
}

int64_t StepPace::PrefillTokens(bool streams, int64_t us) const {
  return prefill_share_ == 0.0 || !streams ? kNoLimit : prefill_rate_.WorkFor(us);
}

void StepPace::RecordDecode(bool streams, int64_t prefill_tokens, int64_t us) {
  const double took = static_cast<double>(us);
  if (prefill_tokens >= kMinPrefillTokens) {
    prefill_rate_.Record(prefill_tokens, us - (streams ? static_cast<int64_t>(decode_us_) : 0));
  }
  if (!streams) return;
  if (decode_us_ == 0.0) {
    decode_us_ = took;
  } else if (prefill_tokens > 0) {
    decode_us_ = std::min(decode_us_, took);
  } else {
    // A step that takes more than twice the average time (because another process held the CPU)
    // enters the average with twice the average time.
    decode_us_ += 0.2 * (std::min(took, 2.0 * decode_us_) - decode_us_);
  }
}

}  // namespace quintet
