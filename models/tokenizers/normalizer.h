// What happens to a text before it is cut into words: tokenizer.json's "normalizer".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenizers/aligned_text.h"
#include "models/tokenizers/charsmap.h"
#include "models/tokenizers/pattern.h"

namespace quintet {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void Apply(AlignedText* text) const = 0;
};
using NormalizerPtr = std::unique_ptr<const Normalizer>;

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

NormalizerPtr MakeUnicodeForm(UnicodeForm form);
NormalizerPtr MakePrecompiled(Charsmap charsmap);
NormalizerPtr MakeLowercase();
NormalizerPtr MakeStrip(bool left, bool right);
NormalizerPtr MakeStripAccents();
NormalizerPtr MakeNmt();  // SentencePiece's hand-written part of nmt_nfkc
NormalizerPtr MakeReplace(Pattern pattern, std::string content);
NormalizerPtr MakePrepend(std::string prefix);
NormalizerPtr MakeByteLevelNormalizer();
NormalizerPtr MakeNormalizerSequence(std::vector<NormalizerPtr> steps);

// Every match of `pattern` in `text` replaced by `content`.
void ReplaceMatches(const Pattern& pattern, std::string_view content, AlignedText* text);

}  // namespace quintet
