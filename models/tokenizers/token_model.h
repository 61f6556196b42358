// The token model: the part of a tokenizer that converts one piece of text (a word) to token ids,
// by unigram or byte-pair encoding.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "models/checkpoint/string_map.h"

namespace quintet {

inline constexpr int64_t kMaxVocabulary = 1 << 22;
inline constexpr size_t kMaxPieceBytes = 4096;

// Token ids in text order, and optionally the tokens' spans [begin, end) in bytes. Spans are stored
// only if `tracked` is true: a list without spans takes a third of the memory of a list with spans.
// Less memory makes the encoding of long words faster, because most of its time is spent on page
// faults of new memory.
struct TokenList {
  struct Span {
    uint32_t begin, end;
  };
  std::vector<int32_t> ids;
  std::vector<Span> spans;  // [ids.size()] if tracked, else empty
  bool tracked = false;

  void Add(int32_t id, uint32_t begin, uint32_t end) {
    ids.push_back(id);
    if (tracked) spans.push_back({begin, end});
  }
  // Reserves capacity for `count` more tokens and a few special tokens. May be called before every
  // piece, because the capacity at least doubles whenever it grows.
  void Reserve(size_t count);
};

// One-to-one map between pieces (the spellings of tokens) and ids. Ids may have gaps.
class Vocabulary {
 public:
  // Adds a piece. Returns INVALID_ARGUMENT (the message does not name the file) for a duplicate id
  // or piece, an id outside [0, kMaxVocabulary), or a piece longer than kMaxPieceBytes.
  absl::Status Add(std::string_view piece, int64_t id);
  int32_t Find(std::string_view piece) const;  // -1 if unknown
  const std::string& Piece(int32_t id) const;  // empty for unused ids and ids out of range
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
  // Appends the tokens of `piece` to a list. `piece` is a part of a text, valid UTF-8 and not
  // empty. Spans count bytes from the start of `piece`.
  virtual void Encode(std::string_view piece, TokenList* tokens) const = 0;

  Vocabulary vocabulary;
  int32_t unknown = -1;
};

// Ids of the 256 pieces "<0x00>" to "<0xFF>", which represent single bytes (byte fallback); -1 if
// the vocabulary lacks the piece.
struct BytePieces {
  std::vector<int32_t> ids;  // [256]
  explicit BytePieces(const Vocabulary& vocabulary);
  bool HasAll(std::string_view bytes) const;
  // Appends one token per byte of `bytes`, which begin at byte `begin` of the encoded piece; the
  // span of each token covers all of `bytes`. If a byte has no token, appends nothing and returns
  // false.
  bool Append(std::string_view bytes, uint32_t begin, TokenList* tokens) const;
};
// Returns the byte that a piece like "<0x0A>" represents; -1 for other pieces.
int BytePieceValue(std::string_view piece);

}  // namespace quintet
