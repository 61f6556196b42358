// Text to token ids and back, equal to what Hugging Face's tokenizers answer for the same files.
// Written here, with a pattern matcher of our own instead of a regular-expression engine; every
// file is untrusted. Encoding is linear in the text (n log n where merges need a heap). Immutable
// after loading and thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace quintet {

struct TokenSpan {
  int32_t id;
  // Of the input text that the token came from; equal for tokens without text (eos).
  uint32_t begin_byte, end_byte;
};

class Tokenizer {
 public:
  // Loads the tokenizer as transformers' AutoTokenizer does (models/README.md): ByT5, which has no
  // file, where tokenizer_config.json or config.json declares it; else the first of tokenizer.json,
  // spiece.model, and vocab.json with merges.txt that the directory holds. added_tokens.json,
  // special_tokens_map.json and tokenizer_config.json are read where present. NOT_FOUND when the
  // directory holds none, INVALID_ARGUMENT with file, place, expected and got when one is bad.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const std::string& directory);

  virtual ~Tokenizer() = default;

  // Ids of `text`: any bytes, invalid UTF-8 is replaced by U+FFFD first. add_special_tokens: with
  // what the file's post-processor adds, eos for T5 and nothing for GPT-2. INVALID_ARGUMENT when
  // the file's normalizer would make the text more than 16 MiB longer, which only a hostile file
  // does.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      bool add_special_tokens) const = 0;
  // The same with the bytes of the text that each token covers.
  virtual absl::StatusOr<std::vector<TokenSpan>> EncodeWithSpans(std::string_view text,
                                                                 bool add_special_tokens) const = 0;

  // Text of ids, those out of range skipped. Equal to Hugging Face's decode with the same
  // skip_special_tokens and with clean-up as the files say.
  virtual std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const = 0;

  // The piece as the vocabulary spells it ("▁the", "Ġthe"); empty for ids out of range.
  virtual std::string Piece(int32_t id) const = 0;
  virtual int32_t PieceToId(std::string_view piece) const = 0;  // -1 when unknown
  virtual bool IsSpecial(int32_t id) const = 0;

  virtual int64_t vocab_size() const = 0;  // highest id + 1, added tokens included
  virtual int32_t eos_id() const = 0;      // -1 when the files name none
  virtual int32_t pad_id() const = 0;
  virtual int32_t unk_id() const = 0;
  virtual int32_t bos_id() const = 0;
};

// Spans of a text whose ids have been truncated to `ids`, which may have kept the text's last one
// (eos) at their end.
std::vector<TokenSpan> CutSpans(std::vector<TokenSpan> spans, absl::Span<const int32_t> ids);

}  // namespace quintet
