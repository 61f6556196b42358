// Checks that must hold for any text and any tokenizer that was loaded without error.
#pragma once

#include <string_view>

#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Encodes and decodes `text` and a few fixed texts. Aborts if an id is outside the vocabulary, a
// span is outside the text, or Encode and EncodeWithSpans differ.
void ExerciseTokenizer(const Tokenizer& tokenizer, std::string_view text);

}  // namespace quintet
