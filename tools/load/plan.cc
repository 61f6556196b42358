#include "tools/load/plan.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace quintet {
namespace {

constexpr int64_t kMostTokens = 1 << 20;
constexpr uint64_t kAdapterStream = ~uint64_t{0};  // prompts have the streams from 2

std::mt19937_64 Generator(uint64_t seed, uint64_t stream) {
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  return std::mt19937_64(sequence);
}

int64_t DrawLength(const TokenRange& range, std::mt19937_64* random) {
  return std::uniform_int_distribution<int64_t>(range.low, range.high)(*random);
}

// By Zipf's law, the adapter at index i is chosen 1 / (i + 1) as often as the first.
std::vector<double> ZipfWeights(size_t count) {
  std::vector<double> weights;
  for (size_t i = 0; i < count; ++i) weights.push_back(1.0 / static_cast<double>(i + 1));
  return weights;
}

}  // namespace

absl::StatusOr<TokenRange> ParseTokenRange(const std::string& flag, const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  TokenRange range;
  const bool numbers = parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &range.low) &&
                       absl::SimpleAtoi(parts.back(), &range.high);
  if (numbers && 1 <= range.low && range.low <= range.high && range.high <= kMostTokens) {
    return range;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      flag, ": expected LOW:HIGH with 1 <= LOW <= HIGH <= ", kMostTokens, ", got ", text));
}

LoadPlan::LoadPlan(LoadShape shape)
    : shape_(std::move(shape)),
      times_(Generator(shape_.seed, 0)),
      contents_(Generator(shape_.seed, 1)),
      adapters_(Generator(shape_.seed, kAdapterStream)),
      interval_s_(shape_.burstiness,
                  1.0 / (std::max(shape_.request_rate, 1e-9) * shape_.burstiness)) {
  const std::vector<double> weights = ZipfWeights(shape_.adapters.size());
  adapter_ = std::discrete_distribution<size_t>(weights.begin(), weights.end());
}

PlannedRequest LoadPlan::Next() {
  PlannedRequest request;
  if (shape_.request_rate > 0) at_s_ += interval_s_(times_);
  request.at_us = static_cast<int64_t>(at_s_ * 1e6);
  // Draw all random values for every request, even those that it does not use. Otherwise changing
  // one flag would change the values that belong to other flags.
  const uint64_t count = static_cast<uint64_t>(std::max<int64_t>(shape_.distinct_prompts, 1));
  const uint64_t shared = std::uniform_int_distribution<uint64_t>(0, count - 1)(contents_);
  const bool beams = std::uniform_real_distribution<double>(0, 1)(contents_) < shape_.beam_share;
  const int64_t output = DrawLength(shape_.output_tokens, &contents_);
  request.num_beams = beams ? shape_.num_beams : 1;
  request.output_tokens = static_cast<uint32_t>(output);
  if (!shape_.adapters.empty()) request.adapter = shape_.adapters[adapter_(adapters_)];
  FillPrompt(shape_.distinct_prompts > 0 ? shared : next_, &request);
  ++next_;
  return request;
}

void LoadPlan::FillPrompt(uint64_t prompt, PlannedRequest* request) const {
  if (!shape_.lines.empty()) {
    request->text = shape_.lines[prompt % shape_.lines.size()];
    return;
  }
  std::mt19937_64 random = Generator(shape_.seed, prompt + 2);
  // Draw no prompt token from the lowest ids, because special tokens usually have low ids.
  const int64_t first = std::min<int64_t>(100, shape_.vocab / 2);
  std::uniform_int_distribution<uint32_t> id(static_cast<uint32_t>(first),
                                             static_cast<uint32_t>(shape_.vocab - 1));
  request->ids.resize(static_cast<size_t>(DrawLength(shape_.input_tokens, &random)));
  for (uint32_t& token : request->ids) token = id(random);
}

}  // namespace quintet
