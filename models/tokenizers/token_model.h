// The part of a tokenizer that turns one piece of text into ids: unigram, byte-pair encoding.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/string_map.h"

namespace quintet {

inline constexpr int64_t kMaxVocabulary = 1 << 22;
inline constexpr size_t kMaxPieceBytes = 4096;

// Tokens in the order of the text. Where each of them came from is kept only where somebody asks:
// ids alone are a third of the bytes, and fresh memory is most of what a long word costs.
struct TokenList {
  struct Span {
    uint32_t begin, end;
  };
  std::vector<int32_t> ids;
  std::vector<Span> spans;  // [ids] when tracked, else empty
  bool tracked = false;

  void Add(int32_t id, uint32_t begin, uint32_t end) {
    ids.push_back(id);
    if (tracked) spans.push_back({begin, end});
  }
  // Makes room for `count` more, and a few special tokens, at once. Cheap to call for every piece.
  void Reserve(size_t count);
};

// Spellings and ids, one to one. Ids may have holes.
class Vocabulary {
 public:
  // INVALID_ARGUMENT (without the file's name) for an id or a spelling twice, ids outside [0,
  // kMaxVocabulary), long pieces.
  absl::Status Add(std::string_view piece, int64_t id);
  int32_t Find(std::string_view piece) const;  // -1 when unknown
  const std::string& Piece(int32_t id) const;  // empty for holes and ids out of range
  bool Has(int32_t id) const { return id >= 0 && id < size() && present_[static_cast<size_t>(id)]; }
  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }  // highest id + 1

 private:
  std::vector<std::string> pieces_;
  std::vector<bool> present_;
  StringMap<int32_t> ids_;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the tokens of `piece`: valid UTF-8, not empty. Spans are bytes of the piece.
  virtual void Encode(std::string_view piece, TokenList* tokens) const = 0;

  Vocabulary vocabulary;
  int32_t unknown = -1;
};

// The 256 pieces "<0x00>".. that stand for single bytes; -1 where the vocabulary lacks one.
struct BytePieces {
  std::vector<int32_t> ids;  // [256]
  explicit BytePieces(const Vocabulary& vocabulary);
  bool HasAll(std::string_view bytes) const;
  // Appends a token for each of `bytes`, which begin at `begin` of the piece; each covers all of
  // them. False, with nothing appended, when one has no piece.
  bool Append(std::string_view bytes, uint32_t begin, TokenList* tokens) const;
};
// The byte that a piece like "<0x0A>" stands for; -1 for other pieces.
int BytePieceValue(std::string_view piece);

}  // namespace quintet
