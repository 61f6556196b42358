// Bounds how much longer a tokenizer.json may make a text. The growth of its steps multiplies: 30
// replacements of one letter by two would turn 1 KB into 1 TB. A file is refused at load only if no
// real tokenizer needs its growth. At run time kMaxAddedBytes (normalizer.h) limits the actual
// text.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Upper bound on output bytes per input byte of a normalizer, pre-tokenizer or decoder. `step` must
// have been accepted by ParseNormalizer, ParsePreTokenizer or ParseDecoder. null: 1.
double TextGrowth(const nlohmann::json& step);

// Limits for encoding (text to pieces) and decoding (pieces to text). T5's own growth is 128
// (Precompiled) * 4 (Replace) * 6 (Metaspace) for encoding and 3 for decoding.
inline constexpr double kMaxEncodingGrowth = 4096, kMaxDecodingGrowth = 16;

// INVALID_ARGUMENT, starting with `where`, if `growth` > `limit`.
absl::Status CheckTextGrowth(double growth, double limit, const std::string& where);

}  // namespace quintet
