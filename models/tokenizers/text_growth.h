// How much longer a tokenizer.json may make a text. Its steps multiply: 30 replacements of one
// letter by two would turn 1 KB into 1 TB.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Bytes that come out of a normalizer, pre-tokenizer or decoder for each byte that goes in, at
// most. `step` is one that ParseNormalizer, ParsePreTokenizer or ParseDecoder has accepted;
// null: 1.
double TextGrowth(const nlohmann::json& step);

// INVALID_ARGUMENT, starting with `where`, when `growth` is more than any real tokenizer needs.
absl::Status CheckTextGrowth(double growth, const std::string& where);

}  // namespace quintet
