// Keeps running streams at their pace while inputs are encoded and prompts are read beside them:
// how long a step may spend on that, and how much work this is. Time in, integers out; it reads no
// clock itself. Results never depend on it, only when they come.
#pragma once

#include <cstdint>

namespace quintet {

// Turns a span of time into an amount of work, by how long such work took before.
class WorkRate {
 public:
  explicit WorkRate(int64_t min_work) : min_work_(min_work) {}

  // Work that is expected to take `us`; at min_work `min_work`, which is also what is tried first.
  int64_t WorkFor(int64_t us) const;
  // `work` was asked for and took `us`. Half of what is believed comes from the latest record.
  void Record(int64_t work, int64_t us);

 private:
  int64_t min_work_;
  double per_us_ = 0.0;
};

class StepPace {
 public:
  // `prefill_share`: time for encoding and reading given tokens in a step, as a prefill_share of
  // what decoding takes; 0: no limit.
  explicit StepPace(double prefill_share) : prefill_share_(prefill_share) {}

  // Time for both in a step. `streams`: sequences are being generated, and wait for it. Without
  // them a step still ends now and then, to look at new, cancelled and late requests.
  int64_t PrefillUs(bool streams) const;
  // Given tokens (prompts, targets) that may be read in a step that has `us` left for it.
  int64_t PrefillTokens(bool streams, int64_t us) const;
  // A decoder step took `us` and read `prefill_tokens`.
  void RecordDecode(bool streams, int64_t prefill_tokens, int64_t us);

 private:
  double prefill_share_;
  double decode_us_ = 0.0;  // of a step that only generates, averaged; 0: not known yet
  WorkRate prefill_rate_{kMinPrefillTokens};
  static constexpr int64_t kMinPrefillTokens = 8;
};

}  // namespace quintet
