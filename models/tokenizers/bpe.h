// Byte-pair encoding (Sennrich et al., 2016) as described by tokenizer.json, or by vocab.json and
// merges.txt. It starts with the characters of a piece of text (a word) and merges adjacent symbols
// into longer tokens. In byte-level models each character stands for a byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/bpe_merger.h"
#include "models/tokenizers/token_model.h"

namespace quintet {

struct BpeOptions {
  std::vector<std::pair<std::string, std::string>> merges;  // ordered by rank
  std::string unknown_token;                                // empty: unknown characters are dropped
  std::string continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

class Bpe : public TokenModel {
 public:
  // Returns INVALID_ARGUMENT (the message does not name the file) if the vocabulary lacks the
  // unknown token, or one of the two parts of a merge, or the merged token.
  static absl::StatusOr<std::unique_ptr<Bpe>> Make(Vocabulary vocabulary, BpeOptions options);
  void Encode(std::string_view piece, TokenList* tokens) const override;

 private:
  Bpe(Vocabulary given, BpeOptions options);
  absl::Status AddMerges();
  int32_t Symbol(std::string_view character, bool first, bool last) const;
  template <typename Add>
  void ForEachSymbol(std::string_view piece, Add add) const;

  BpeOptions options_;
  MergeTable merges_;
  BytePieces bytes_;
  // [1024]: for each code point below 1024, the id of its one-character token without subword
  // prefix and suffix; -1 if there is none.
  std::vector<int32_t> characters_;
};

}  // namespace quintet
