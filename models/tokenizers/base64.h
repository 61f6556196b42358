// Base64 (RFC 4648, standard alphabet), in which tokenizer.json stores binary normalization rules.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quintet {

// Returns nullopt for characters outside the alphabet, a wrong length or missing padding.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace quintet
