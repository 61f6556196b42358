// Unigram language model (Kudo, 2018): the segmentation with the highest sum of piece scores, by
// Viterbi over a trie.
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
  std::vector<double> scores;  // [vocabulary], finite
  double unknown_score = 0;
};

// Of a piece. The best way to a byte may end in any piece that ends there, so
// every byte of a text costs up to this many steps, and no search can spare them. Pieces of real
// vocabularies are not near it: SentencePiece makes them of at most 16 characters where it is not
// told otherwise.
inline constexpr size_t kMaxUnigramPieceBytes = 256;

class Unigram : public TokenModel {
 public:
  // vocabulary and unknown (>= 0) are final. INVALID_ARGUMENT (without the file's name) when a
  // piece is longer than kMaxUnigramPieceBytes.
  static absl::StatusOr<std::unique_ptr<const TokenModel>> Make(Vocabulary vocabulary,
                                                                int32_t unknown,
                                                                UnigramOptions options);
  void Encode(std::string_view piece, TokenList* tokens) const override;

 private:
  Unigram(Vocabulary given, int32_t unknown_id, UnigramOptions options);
  // One element a byte; most pieces are words and need no memory of their own.
  using Path = absl::InlinedVector<int32_t, 64>;
  Path LastPieces(std::string_view piece) const;
  void AppendUnknown(std::string_view piece, TokenList::Span run, TokenList* tokens) const;

  UnigramOptions options_;
  std::vector<uint16_t> piece_bytes_;  // [vocabulary]
  size_t window_ = 0;  // power of two beyond the bytes of the longest piece and any character
  Trie trie_;
  BytePieces bytes_;
};

}  // namespace quintet
