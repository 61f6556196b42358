// One JSON string, read in place and at the speed of memory.
#pragma once

#include <string>
#include <string_view>

namespace quintet {

// Reads the string that starts with a quote at text[*at], decodes its escapes into `value`, and
// moves *at past its closing quote. False, with *at where it went wrong, when there is none, or it
// holds control characters, bad escapes, lone surrogates or bytes that are not UTF-8.
bool ReadJsonString(std::string_view text, size_t* at, std::string* value);

}  // namespace quintet
