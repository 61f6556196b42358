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

// Limit on the number of bytes by which a normalizer may lengthen a text, checked after every step.
// It protects against tokenizer files that turn a text into gigabytes. Texts of requests are
// limited to 1 MiB; to such a text real tokenizers add far fewer bytes than this limit.
inline constexpr size_t kMaxAddedBytes = size_t{16} << 20;
// Returns INVALID_ARGUMENT if output_bytes > input_bytes + kMaxAddedBytes; arguments are the sizes
// of a text before and after normalization.
absl::Status CheckGrowth(size_t input_bytes, size_t output_bytes);

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites the text. Returns INVALID_ARGUMENT if it becomes too long (CheckGrowth); *text is then
  // unspecified.
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
