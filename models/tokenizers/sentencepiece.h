// Reads SentencePiece models (spiece.model) with the rules of transformers' T5Tokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/tokenizers/settings.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Makes the tokenizer from `bytes`, the content of a SentencePiece file; `where` is its name.
// INVALID_ARGUMENT for bad contents; the message names the file and the place in it, and says what
// was expected and what was found.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseSentencePiece(
    std::string_view bytes, const std::string& where, const TokenizerSettings& settings);

}  // namespace quintet
