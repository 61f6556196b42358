// How a normalised text is cut into the pieces that the model sees one by one: tokenizer.json's
// "pre_tokenizer".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenizers/aligned_text.h"
#include "models/tokenizers/pattern.h"

namespace quintet {

// A text and its pieces: ascending, not overlapping, none empty.
struct SplitText {
  struct Piece {
    uint32_t begin, end;
  };
  AlignedText text;
  std::vector<Piece> pieces;
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void Apply(SplitText* split) const = 0;
};
using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

// What becomes of the delimiters that a split finds.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};
enum class PrependScheme : uint8_t { kAlways, kFirst, kNever };

PreTokenizerPtr MakeMetaspace(std::string replacement, PrependScheme scheme, bool split);
// Pattern: GPT-2's; pass null to leave the pieces whole.
PreTokenizerPtr MakeByteLevel(bool add_prefix_space, std::unique_ptr<const Pattern> pattern);
PreTokenizerPtr MakeSplit(Pattern pattern, SplitBehavior behavior, bool invert);
PreTokenizerPtr MakeWhitespaceSplit();
PreTokenizerPtr MakePunctuation(SplitBehavior behavior);
PreTokenizerPtr MakeDigits(bool individual);
PreTokenizerPtr MakePreTokenizerSequence(std::vector<PreTokenizerPtr> steps);

}  // namespace quintet
