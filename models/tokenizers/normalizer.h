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

// A step whose replacements come from a file makes a text at most this much longer, and cuts it
// there. The longest text of a request, 1 MiB, comes nowhere near it with a real tokenizer: the
// bound is for files that would turn such a text into gigabytes.
inline constexpr size_t kMostAddedBytes = size_t{16} << 20;

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

}  // namespace quintet
