// Limits the time per step for encoding and prefill, so that generating requests get their tokens
// at an even pace: computes how many microseconds a step may spend on encoding and prefill, and how
// much work fits into them. Reads no clock: the caller passes all times. Affects latency only,
// never results. Not thread safe.
#pragma once

#include <cstdint>

namespace quintet {

// Converts a time budget into an amount of work of one kind (encoding, for example), at the rate
// that was measured for that kind. Each kind has its own object.
class WorkRate {
 public:
  explicit WorkRate(int64_t min_work) : min_work_(min_work) {}

  // Returns the amount of work (in the caller's unit) expected to take `us` microseconds, but at
  // least `min_work`. Returns `min_work` before the first Record.
  int64_t WorkFor(int64_t us) const;
  // Records that `work` took `us` microseconds. The rate becomes the mean of the previous rate and
  // this measurement.
  void Record(int64_t work, int64_t us);

 private:
  int64_t min_work_;
  double per_us_ = 0.0;
};

class StepPace {
 public:
  // `prefill_share`: the time that a step may spend on encoding and prefill, as a fraction of its
  // decoding time; 0: no limit.
  explicit StepPace(double prefill_share) : prefill_share_(prefill_share) {}

  // Returns the microseconds that the next step may spend on encoding and prefill together.
  // `streams`: whether any request is past its prefill and generates tokens, which this time would
  // delay. If none is, a fixed limit applies, so that steps end often enough to handle new,
  // cancelled and expired requests.
  int64_t PrefillUs(bool streams) const;
  // Returns how many prompt and target tokens the next step may prefill. `us`: what is left of
  // PrefillUs(streams), in microseconds.
  int64_t PrefillTokens(bool streams, int64_t us) const;
  // Records that a decoder step took `us` microseconds and prefilled `prefill_tokens` tokens.
  void RecordDecode(bool streams, int64_t prefill_tokens, int64_t us);

 private:
  double prefill_share_;
  double decode_us_ = 0.0;  // average of steps without prefill; 0: unknown
  WorkRate prefill_rate_{kMinPrefillTokens};
  static constexpr int64_t kMinPrefillTokens = 8;
};

}  // namespace quintet
