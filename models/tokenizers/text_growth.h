// Bounds how much longer a tokenizer.json may make a text. The growth factors of its steps
// multiply: 30 replacements of one letter by two would turn 1 KB into 1 TB. The bounds are so high
// that no real tokenizer exceeds them; files that do are rejected at load. At run time
// kMaxAddedBytes (normalizer.h) limits the actual text.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Returns an upper bound on output bytes per input byte of a normalizer, pre-tokenizer or decoder
// in tokenizer.json. ParseNormalizer, ParsePreTokenizer or ParseDecoder must have accepted `step`.
// 1 if it is null.
double TextGrowth(const nlohmann::json& step);

// Limits of the growth (output bytes per input byte) for encoding (text to pieces) and decoding
// (pieces to text). T5 has 128 (Precompiled) * 4 (Replace) * 6 (Metaspace) for encoding and 3 for
// decoding.
inline constexpr double kMaxEncodingGrowth = 4096, kMaxDecodingGrowth = 16;

// INVALID_ARGUMENT, starting with `where`, if `growth` > `limit`.
absl::Status CheckTextGrowth(double growth, double limit, const std::string& where);

}  // namespace quintet
