// Hugging Face's beam search, greedy search and processors once more, in plain loops with whole
// sequences and full sorts: what the engine's own is held against.
#pragma once

#include <functional>
#include <vector>

#include "engine/options.h"

namespace quintet {

// Raw logits after a history of decoder ids.
using LogitsFunction = std::function<std::vector<float>(const std::vector<int32_t>& history)>;

struct ReferenceSequence {
  std::vector<int32_t> tokens;  // new ones
  float score = 0.0f;
};

// What the processors of `options` make of one row.
std::vector<float> ReferenceProcess(const DecodingOptions& options,
                                    const std::vector<int32_t>& history, std::vector<float> row);
std::vector<float> ReferenceLogSoftmax(std::vector<float> row);

std::vector<int32_t> ReferenceGreedy(const DecodingOptions& options, const LogitsFunction& logits);
std::vector<ReferenceSequence> ReferenceBeams(const DecodingOptions& options,
                                              const LogitsFunction& logits);

}  // namespace quintet
