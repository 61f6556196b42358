// Added tokens: special tokens such as </s> and <extra_id_0>, and other tokens that were added to a
// vocabulary after training. They are matched in the text before the token model (BPE or unigram)
// runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/checkpoint/string_map.h"
#include "models/tokenizers/key_search.h"
#include "models/tokenizers/normalizer.h"

namespace quintet {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;             // matches only without word characters next to it
  bool lstrip = false, rstrip = false;  // also match white space on that side
  // If true, the token is matched in the normalized text instead of the raw text.
  bool normalized = false;
  // AddedTokens::Finish sets `decoded` and `hidden`. `decoded` is the text to which the token
  // decodes: its content or, if `normalized` is true, its normalized content. `hidden` is true if
  // `decoded` equals the content of a special token, as in Hugging Face's tokenizers; Decode omits
  // hidden tokens if it is called to skip special tokens.
  std::string decoded;
  bool hidden = false;
};

class AddedTokens {
 public:
  // Adds a token. A later token replaces an earlier one of the same id or content, so call Add in
  // file order, and Finish after the last token.
  void Add(AddedToken token);
  // Builds the two KeySearches that Split uses, one for raw text and one for normalized text.
  // Applies `normalizer` (may be null) to the content of each token whose `normalized` is true.
  // Returns INVALID_ARGUMENT if this makes the contents too long in total (CheckGrowth).
  absl::Status Finish(const Normalizer* normalizer);
  // After this call, U+001C to U+001F also count as white space for lstrip and rstrip, as in
  // Python's str.strip.
  void StripSeparators() { strips_separators_ = true; }
  // After this call Split does not look for special tokens: a special token's spelling in a text is
  // then ordinary text.
  void SplitSpecialTokens() { splits_special_ = true; }

  const AddedToken* FindId(int32_t id) const;
  const AddedToken* FindContent(std::string_view content) const;
  int32_t highest_id() const { return highest_id_; }  // -1 when there is none

  // A part of a text: either one added token or the text between added tokens (id -1).
  struct Segment {
    size_t begin, end;
    int32_t id;
  };
  // Kind of a text given to Split. Tokens whose `normalized` is true are matched only in normalized
  // text, other tokens only in raw text.
  enum class Text : uint8_t { kRaw, kNormalized };
  // Splits a text into segments that cover it in order. Segments with id -1 are never empty. The
  // leftmost match is taken first; of tokens that begin at the same byte, the longest is taken.
  // Takes O(n) time for a text of n bytes.
  std::vector<Segment> Split(std::string_view text, Text kind) const;

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  StringMap<size_t> by_content_;
  KeySearch raw_, normalized_;  // values: indices into tokens_
  int32_t highest_id_ = -1;
  bool strips_separators_ = false, splits_special_ = false;
};

}  // namespace quintet
