// How much longer a tokenizer.json may make a text. Its steps multiply: 30 replacements of one
// letter by two would turn 1 KB into 1 TB. What is refused at load is only what no real tokenizer
// needs; what a text becomes is bounded as well, by an error (kMostAddedBytes of normalizer.h).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Bytes that come out of a normalizer, pre-tokenizer or decoder for each byte that goes in, at
// most. `step` is one that ParseNormalizer, ParsePreTokenizer or ParseDecoder has accepted;
// null: 1.
double TextGrowth(const nlohmann::json& step);

// Bounds for a text on its way to tokens, and for pieces on their way to text. T5's own growth:
// 128 (Precompiled) * 4 (Replace) * 6 (Metaspace), and 3 back.
inline constexpr double kMostEncodingGrowth = 4096, kMostDecodingGrowth = 16;

// INVALID_ARGUMENT, starting with `where`, when `growth` is above `most`.
absl::Status CheckTextGrowth(double growth, double most, const std::string& where);

}  // namespace quintet
