// Decoding options of one line of JSON input: {"text": "...", "num_beams": 4, "stop": ["."]}.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/options.h"
#include "models/tokenizers/tokenizer.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Names of the fields: those of the proto's DecodingOptions, and decoder_prefix.
const std::vector<std::string>& DecodingJsonNames();

// Replaces the options of *request that `line` sets. early_stopping is true, false or "never", or
// "heuristic", "first" or "never"; decoder_prefix a text or token ids. INVALID_ARGUMENT names the
// field, the type that was expected and what was found; ranges are checked by ResolveDecoding.
// `tokenizer` may be null unless decoder_prefix is a text.
absl::Status ReadDecodingJson(const nlohmann::json& line, const Tokenizer* tokenizer,
                              DecodingRequest* request);

}  // namespace quintet
