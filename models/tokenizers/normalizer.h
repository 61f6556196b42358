// Rewrites a text before it is split into words: the "normalizer" of tokenizer.json.
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

// Limit in bytes on how much a normalizer may lengthen a text, checked after every step. It guards
// against files that turn a text into gigabytes; with a real tokenizer the longest text of a
// request, 1 MiB, stays far below it.
inline constexpr size_t kMaxAddedBytes = size_t{16} << 20;
// INVALID_ARGUMENT if `output_bytes` > `input_bytes` + kMaxAddedBytes.
absl::Status CheckGrowth(size_t input_bytes, size_t output_bytes);

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // INVALID_ARGUMENT if the text becomes too long; *text is then unspecified.
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
