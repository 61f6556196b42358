// Decoding options in one line of JSON input, for example num_beams and stop in {"text": "...",
// "num_beams": 4, "stop": ["."]}.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/options.h"
#include "models/tokenizers/tokenizer.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Names of the fields that a line may set: all fields of the proto's DecodingOptions, and
// decoder_prefix.
const std::vector<std::string>& DecodingJsonNames();

// Replaces those options of *request that `line` sets. early_stopping may be true, false or one of
// the strings "never", "heuristic" and "first"; decoder_prefix may be a text or an array of token
// ids. Errors are INVALID_ARGUMENT and name the field, the expected type and the value found.
// ResolveDecoding checks ranges later. `tokenizer` may be null unless decoder_prefix is a text.
absl::Status ReadDecodingJson(const nlohmann::json& line, const Tokenizer* tokenizer,
                              DecodingRequest* request);

}  // namespace quintet
