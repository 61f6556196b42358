// Splits a normalized text into the pieces (words) that the token model encodes one by one: the
// "pre_tokenizer" of tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/tokenizers/aligned_text.h"
#include "models/tokenizers/pattern.h"

namespace quintet {

// A text and its pieces. A piece is a range of bytes [begin, end) of the text. Pieces are in
// ascending order, do not overlap and are not empty.
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

// What a split does with the delimiter: removes it, keeps it as a piece of its own (kContiguous:
// adjacent delimiters together), or joins it to the piece before or after it.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous
};
enum class PrependScheme : uint8_t { kAlways, kFirst, kNever };

PreTokenizerPtr MakeMetaspace(std::string replacement, PrependScheme scheme, bool split);
// GPT-2's byte-level pre-tokenizer. `pattern` splits the text into words (kGpt2Pattern); if it is
// null, the text is not split.
PreTokenizerPtr MakeByteLevel(bool add_prefix_space, std::unique_ptr<const Pattern> pattern);
PreTokenizerPtr MakeSplit(Pattern pattern, SplitBehavior behavior, bool invert);
PreTokenizerPtr MakeWhitespaceSplit();
PreTokenizerPtr MakePunctuation(SplitBehavior behavior);
PreTokenizerPtr MakeDigits(bool individual);
PreTokenizerPtr MakePreTokenizerSequence(std::vector<PreTokenizerPtr> steps);

}  // namespace quintet
