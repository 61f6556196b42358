// Reads one JSON string directly from a text, without a general JSON parser.
#pragma once

#include <string>
#include <string_view>

namespace quintet {

// Reads the string whose opening quote is text[*at], decodes its escapes into *value and moves *at
// past the closing quote. Returns false, with *at near the error, if there is no string or if it
// contains control characters, bad escapes, lone surrogates or invalid UTF-8.
bool ReadJsonString(std::string_view text, size_t* at, std::string* value);

}  // namespace quintet
