// Limits how much longer the steps of a tokenizer.json may make a text. The growth factors of the
// steps multiply: 30 replacements of one letter by two would turn 1 KB into 1 TB. Files whose
// growth factor exceeds the limits below are rejected at load; no real tokenizer exceeds them. At
// run time kMaxAddedBytes (normalizer.h) limits the actual text.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Returns an upper bound on output bytes per input byte of `step`, a normalizer, pre-tokenizer or
// decoder in tokenizer.json; 1 if `step` is null. ParseNormalizer, ParsePreTokenizer or
// ParseDecoder must have accepted `step` before.
double TextGrowth(const nlohmann::json& step);

// Limits of the growth (output bytes per input byte) for encoding (text to pieces) and decoding
// (pieces to text). T5 has 128 (Precompiled) * 4 (Replace) * 6 (Metaspace) for encoding and 3 for
// decoding.
inline constexpr double kMaxEncodingGrowth = 4096, kMaxDecodingGrowth = 16;

// Returns INVALID_ARGUMENT if `growth` > `limit`; the message starts with `where`.
absl::Status CheckTextGrowth(double growth, double limit, const std::string& where);

}  // namespace quintet
