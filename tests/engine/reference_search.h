// A second implementation of Hugging Face's beam search, greedy search and logits processors in
// plain loops with whole sequences and full sorts. Tests compare the results of the engine's own
// implementation with the results of this one.
#pragma once

#include <functional>
#include <vector>

#include "engine/options.h"

namespace quintet {

// Raw logits after a history of decoder ids.
using LogitsFunction = std::function<std::vector<float>(const std::vector<int32_t>& history)>;

struct ReferenceSequence {
  std::vector<int32_t> tokens;  // new tokens
  float score = 0.0f;
};

// Applies the processors of `options` to one row.
std::vector<float> ReferenceProcess(const DecodingOptions& options,
                                    const std::vector<int32_t>& history, std::vector<float> row);
std::vector<float> ReferenceLogSoftmax(std::vector<float> row);

std::vector<int32_t> ReferenceGreedy(const DecodingOptions& options, const LogitsFunction& logits);
std::vector<ReferenceSequence> ReferenceBeams(const DecodingOptions& options,
                                              const LogitsFunction& logits);

}  // namespace quintet
