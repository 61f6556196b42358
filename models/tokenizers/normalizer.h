// What happens to a text before it is cut into words: tokenizer.json's "normalizer".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/tokenizers/aligned_text.h"
#include "models/tokenizers/charsmap.h"
#include "models/tokenizers/pattern.h"

namespace quintet {

// A text may become at most this much longer on its way through a normalizer, at every step of it.
// The longest text of a request, 1 MiB, comes nowhere near it with a real tokenizer: the bound is
// for files that would turn such a text into gigabytes.
inline constexpr size_t kMostAddedBytes = size_t{16} << 20;
// INVALID_ARGUMENT when `grown` is more than kMostAddedBytes above `bytes`.
absl::Status CheckGrowth(size_t bytes, size_t grown);

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // INVALID_ARGUMENT when the text would become too long; it is of no use then.
  virtual absl::Status Apply(AlignedText* text) const = 0;
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
