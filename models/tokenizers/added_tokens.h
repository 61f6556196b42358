// Tokens that are cut out of a text before the model sees it: special tokens like </s> and
// <extra_id_0>, and others added to a vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/string_map.h"
#include "models/tokenizers/key_search.h"
#include "models/tokenizers/normalizer.h"

namespace quintet {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;             // matches only between non-word characters
  bool lstrip = false, rstrip = false;  // takes the white space on that side along
  bool normalized = false;  // is looked for in the normalised text instead of the raw one
  // Set by AddedTokens::Finish. What it decodes to, and whether texts without special tokens lack
  // that: as in Hugging Face's tokenizers, the decoded text must spell a special token.
  std::string decoded;
  bool hidden = false;
};

class AddedTokens {
 public:
  // Tokens in the order of the file; a later one of the same id or content replaces the earlier.
  // Call Finish afterwards.
  void Add(AddedToken token);
  // Builds the searches. `normalizer` (may be null) is applied to the content of normalised tokens.
  // INVALID_ARGUMENT when it makes them too long, all together.
  absl::Status Finish(const Normalizer* normalizer);
  // lstrip and rstrip take U+001C to U+001F along too, as Python's strip does.
  void StripSeparators() { strips_separators_ = true; }
  // Text is not cut at special tokens.
  void SplitSpecialTokens() { splits_special_ = true; }

  const AddedToken* FindId(int32_t id) const;
  const AddedToken* FindContent(std::string_view content) const;
  int32_t highest_id() const { return highest_id_; }  // -1 when there is none

  // A stretch of text: an added token's, or what lies between them (id -1).
  struct Stretch {
    size_t begin, end;
    int32_t id;
  };
  // Cuts a text into stretches, none empty but those of tokens; leftmost token
  // first, the longest of those that begin at one place. Linear in the text.
  enum class Text : uint8_t { kRaw, kNormalized };
  std::vector<Stretch> Split(std::string_view text, Text kind) const;

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_map<int32_t, size_t> by_id_;
  StringMap<size_t> by_content_;
  KeySearch raw_, normalized_;  // values: indices of tokens_
  int32_t highest_id_ = -1;
  bool strips_separators_ = false, splits_special_ = false;
};

}  // namespace quintet
