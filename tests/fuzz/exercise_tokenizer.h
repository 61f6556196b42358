// What must hold for any tokenizer that a file was accepted for, whatever the file and the text.
#pragma once

#include <string_view>

#include "models/tokenizer.h"

namespace quintet {

// Encodes and decodes `text` and a few texts of its own; aborts when ids are outside of the
// vocabulary, spans outside of the text, or Encode and EncodeWithSpans differ.
void ExerciseTokenizer(const Tokenizer& tokenizer, std::string_view text);

}  // namespace quintet
