// Tokens back to text: tokenizer.json's "decoder".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenizers/pattern.h"

namespace quintet {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Rewrites the spellings of tokens; joined without anything between they are the text.
  virtual void Apply(std::vector<std::string>* tokens) const = 0;
};
using DecoderPtr = std::unique_ptr<const Decoder>;

DecoderPtr MakeByteLevelDecoder();
// strips_first: no spaces for the replacement in the first token.
DecoderPtr MakeMetaspaceDecoder(std::string replacement, bool strips_first);
DecoderPtr MakeReplaceDecoder(Pattern pattern, std::string content);
DecoderPtr MakeByteFallbackDecoder();
DecoderPtr MakeFuseDecoder();
// Cuts up to `start` and `stop` characters `content` from the ends of each token.
DecoderPtr MakeStripDecoder(std::string content, size_t start, size_t stop);
DecoderPtr MakeBpeDecoder(std::string suffix);
DecoderPtr MakeDecoderSequence(std::vector<DecoderPtr> steps);

// HF's clean_up_tokenization: removes spaces before punctuation and English contractions.
void CleanUpSpaces(std::string* text);

}  // namespace quintet
