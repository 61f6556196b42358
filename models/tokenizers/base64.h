// Base64 (RFC 4648, standard alphabet). tokenizer.json stores its binary normalization rules so.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quintet {

// Returns nullopt for characters outside the alphabet, a wrong length or missing padding.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace quintet
