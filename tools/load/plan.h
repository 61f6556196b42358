// What a load consists of, drawn from a seed: when each request is due and what it asks for.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

struct TokenRange {
  int64_t low = 0, high = 0;  // both included
};
// "8:128", or "64" for exactly 64. INVALID_ARGUMENT names `flag`: not numbers, low below 1, high
// below low or above 2^20.
absl::StatusOr<TokenRange> ParseTokenRange(const std::string& flag, const std::string& text);

struct LoadShape {
  double request_rate = 0;  // requests a second; 0: all are due at once
  // Shape of the gamma distribution that the intervals follow: 1 is a Poisson process, less comes
  // in bursts, more is steadier.
  double burstiness = 1;
  std::vector<std::string> lines;  // prompts as text; empty: random ids of `input_tokens`
  TokenRange input_tokens{128, 128};
  TokenRange output_tokens;      // {0, 0}: the model decides
  int64_t distinct_prompts = 0;  // requests share so many prompts, picked evenly; 0: one for each
  double beam_share = 0;         // of the requests, searched with `num_beams`
  uint32_t num_beams = 4;
  int64_t vocab = 0;  // ids are drawn below it
  uint64_t seed = 1;
};

struct PlannedRequest {
  int64_t at_us = 0;  // due so long after the start
  std::string text;   // empty with ids
  std::vector<uint32_t> ids;
  uint32_t output_tokens = 0;  // exactly so many; 0: the model decides
  uint32_t num_beams = 1;
};

// The n-th request depends on the shape and on n alone; its contents do not change with the rate
// or the burstiness. One thread.
class LoadPlan {
 public:
  explicit LoadPlan(LoadShape shape);
  PlannedRequest Next();
  const LoadShape& shape() const { return shape_; }

 private:
  void FillPrompt(uint64_t prompt, PlannedRequest* request) const;

  const LoadShape shape_;
  std::mt19937_64 times_, contents_;
  std::gamma_distribution<double> interval_s_;
  double at_s_ = 0;
  uint64_t next_ = 0;
};

}  // namespace quintet
