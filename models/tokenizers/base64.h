// Base64 (RFC 4648, standard alphabet), as tokenizer.json holds its binary normalisation rules.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quintet {

// nullopt for characters outside the alphabet or a wrong length; padding is required.
std::optional<std::string> DecodeBase64(std::string_view text);

}  // namespace quintet
