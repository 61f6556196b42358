// Generates the requests of a load test from a seed: their arrival times and their contents.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

struct TokenRange {
  int64_t low = 0, high = 0;  // inclusive
};
// Parses a range of token counts: "8:128", or "64" for exactly 64 tokens. Returns INVALID_ARGUMENT,
// which names `flag`, unless the values are whole numbers with 1 <= low <= high <= 2^20.
absl::StatusOr<TokenRange> ParseTokenRange(const std::string& flag, const std::string& text);

struct LoadShape {
  double request_rate = 0;  // requests per second; 0: all are scheduled at time 0
  // Shape parameter of the gamma distribution of the intervals between arrivals: 1 = Poisson
  // process, < 1 = bursty, > 1 = regular.
  double burstiness = 1;
  std::vector<std::string> lines;  // prompts as text; empty: random ids of `input_tokens`
  TokenRange input_tokens{128, 128};
  TokenRange output_tokens;      // {0, 0}: the model ends the sequence
  int64_t distinct_prompts = 0;  // number of prompts, chosen uniformly; 0: one per request
  double beam_share = 0;         // fraction of requests that use `num_beams` beams
  uint32_t num_beams = 4;
  std::vector<std::string> adapters;  // each request has one, by Zipf's law in this order
  int64_t vocab = 0;                  // random token ids are less than this
  uint64_t seed = 1;
};

struct PlannedRequest {
  int64_t at_us = 0;  // scheduled time after the start of the run
  std::string text;   // empty if `ids` is set
  std::vector<uint32_t> ids;
  uint32_t output_tokens = 0;  // exact number of new tokens; 0: the model ends the sequence
  uint32_t num_beams = 1;
  std::string adapter;  // empty: none
};

// Generates the requests one after the other. Request n depends only on the LoadShape and n; its
// contents (all but its time) do not depend on request_rate and burstiness. Not thread safe.
class LoadPlan {
 public:
  explicit LoadPlan(LoadShape shape);
  PlannedRequest Next();
  const LoadShape& shape() const { return shape_; }

 private:
  void FillPrompt(uint64_t prompt, PlannedRequest* request) const;

  const LoadShape shape_;
  std::mt19937_64 times_, contents_, adapters_;
  std::gamma_distribution<double> interval_s_;
  std::discrete_distribution<size_t> adapter_;  // index in shape_.adapters
  double at_s_ = 0;
  uint64_t next_ = 0;
};

}  // namespace quintet
