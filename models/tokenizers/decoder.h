// Converts tokens back to text: the "decoder" of tokenizer.json.
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
  // Rewrites the texts of the tokens, and may join tokens. In a sequence of decoders the first one
  // gets the tokens' spellings, each further one gets the output of the decoder before it, and the
  // texts that the last one returns are concatenated.
  virtual void Apply(std::vector<std::string>* tokens) const = 0;
};
using DecoderPtr = std::unique_ptr<const Decoder>;

DecoderPtr MakeByteLevelDecoder();
// Replaces each occurrence of `replacement` by a space. If strips_first, occurrences in the first
// token are removed instead.
DecoderPtr MakeMetaspaceDecoder(std::string replacement, bool strips_first);
DecoderPtr MakeReplaceDecoder(Pattern pattern, std::string content);
DecoderPtr MakeByteFallbackDecoder();
DecoderPtr MakeFuseDecoder();
// Removes up to `start` copies of the character `content` from the beginning of each token and up
// to `stop` copies from its end.
DecoderPtr MakeStripDecoder(std::string content, size_t start, size_t stop);
DecoderPtr MakeBpeDecoder(std::string suffix);
DecoderPtr MakeDecoderSequence(std::vector<DecoderPtr> steps);

// Hugging Face's clean_up_tokenization: removes the space before a punctuation mark, and the space
// before an English contraction such as n't or 's.
void CleanUpSpaces(std::string* text);

}  // namespace quintet
