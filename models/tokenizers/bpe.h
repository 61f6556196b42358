// Byte-pair encoding (Sennrich et al., 2016) as tokenizer.json and vocab.json + merges.txt describe
// it: over the characters of a piece, which for byte-level models stand for bytes.
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
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::string unknown_token;                                // empty: unknown characters vanish
  std::string continuing_subword_prefix, end_of_word_suffix;
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
};

class Bpe : public TokenModel {
 public:
  // INVALID_ARGUMENT (without the file's name) when a merge's parts or result, or the unknown
  // token, are not in the vocabulary.
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
  std::vector<int32_t>
      characters_;  // id of each code point below 1024 without prefix and suffix; -1: none
};

}  // namespace quintet
