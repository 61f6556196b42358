// Unigram language model (Kudo, 2018). Finds the segmentation of a text into pieces of the
// vocabulary with the highest sum of piece scores, by the Viterbi algorithm over a trie.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "models/tokenizers/token_model.h"
#include "models/tokenizers/trie.h"

namespace quintet {

struct UnigramOptions {
  bool byte_fallback = false;
  std::vector<double> scores;  // [vocab], finite
  // [vocab] true for pieces that no text matches, e.g. control symbols; empty: there are none.
  std::vector<bool> unmatched;
  double unknown_score = 0;
};

// Maximum length of a piece in bytes. The search takes up to this number of steps at each byte of a
// text, because any piece that ends there may be the last one of the best path. Pieces of real
// vocabularies are much shorter: SentencePiece's default limit is 16 characters.
inline constexpr size_t kMaxUnigramPieceBytes = 256;

class Unigram : public TokenModel {
 public:
  // Returns INVALID_ARGUMENT (the message does not name the file) if a piece is longer than
  // kMaxUnigramPieceBytes. `unknown` is the id of the unknown token, >= 0.
  static absl::StatusOr<std::unique_ptr<const TokenModel>> Make(Vocabulary vocabulary,
                                                                int32_t unknown,
                                                                UnigramOptions options);
  void Encode(std::string_view piece, TokenList* tokens) const override;

 private:
  Unigram(Vocabulary given, int32_t unknown_id, UnigramOptions options);
  // Result of BestLastPieces: n + 1 elements for a piece of text of n bytes. Most words fit in the
  // inline capacity of 64 elements and therefore allocate no memory.
  using Path = absl::InlinedVector<int32_t, 64>;
  Path BestLastPieces(std::string_view piece) const;
  void AppendUnknown(std::string_view piece, TokenList::Span run, TokenList* tokens) const;

  UnigramOptions options_;
  std::vector<uint16_t> piece_bytes_;  // [vocab]
  // Size of the ring buffer of path scores: a power of two, greater than the number of bytes of
  // each piece and of each character.
  size_t window_ = 0;
  Trie trie_;
  BytePieces bytes_;
};

}  // namespace quintet
