// A tokenizer: text to token ids and back, with the same result as Hugging Face's tokenizers
// library for the same files. All parts are implemented in this folder, including the pattern
// matcher, which replaces a regular-expression engine. Files are untrusted. Encoding takes O(n)
// time in the bytes of the text, or O(n log n) where BPE merges need a heap. Immutable after
// loading and thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quintet {

struct TokenSpan {
  int32_t id;
  // The token covers bytes [begin_byte, end_byte) of the input text. For tokens without text (eos)
  // begin_byte equals end_byte.
  uint32_t begin_byte, end_byte;
};

class Tokenizer {
 public:
  // Loads the tokenizer with the same rules as transformers' AutoTokenizer (models/README.md). ByT5
  // has no tokenizer file and is chosen if tokenizer_config.json or config.json declares it.
  // Otherwise the first of these that exists is loaded: tokenizer.json; spiece.model; vocab.json
  // with merges.txt. added_tokens.json, special_tokens_map.json and tokenizer_config.json are read
  // if present. NOT_FOUND if the directory has no tokenizer: no tokenizer.json, no spiece.model, no
  // vocab.json with merges.txt, and no file that declares ByT5. INVALID_ARGUMENT for a bad file;
  // the message names the file and the place in it, and says what was expected and what was found.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const std::string& directory);

  virtual ~Tokenizer() = default;

  // Returns the token ids of `text`, which may be any bytes: invalid UTF-8 is first replaced by
  // U+FFFD. With add_special_tokens the result includes the tokens that the file's post-processor
  // adds: eos for T5, nothing for GPT-2. Returns INVALID_ARGUMENT if the file's normalizer makes
  // the text more than 16 MiB longer, which only a hostile file does.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      bool add_special_tokens) const = 0;
  // Returns the tokens that Encode would return, each with the bytes of `text` that it covers.
  virtual absl::StatusOr<std::vector<TokenSpan>> EncodeWithSpans(std::string_view text,
                                                                 bool add_special_tokens) const = 0;

  // Returns the text of `ids`; ids out of range are skipped. Equal to the result of Hugging Face's
  // decode with the same skip_special_tokens, including the clean-up of spaces if the files enable
  // it.
  virtual std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;

  // Returns a token's spelling in the vocabulary ("▁the", "Ġthe"); empty for ids out of range.
  virtual std::string Piece(int32_t id) const = 0;
  virtual int32_t PieceToId(std::string_view piece) const = 0;  // -1 if unknown
  virtual bool IsSpecial(int32_t id) const = 0;

  virtual int64_t vocab_size() const = 0;  // highest id + 1, added tokens included
  virtual int32_t eos_id() const = 0;      // -1 if the files name none
  virtual int32_t pad_id() const = 0;
  virtual int32_t unk_id() const = 0;
  virtual int32_t bos_id() const = 0;
};

// Returns the spans of the ids that remain after truncation. `spans` are the spans of all ids of a
// text. `ids` are the remaining ids: the first ids of the text, or the first ids followed by the
// text's last id (eos), which keeps its span.
std::vector<TokenSpan> TruncateSpans(std::vector<TokenSpan> spans, std::span<const int32_t> ids);

}  // namespace quintet
