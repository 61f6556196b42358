// The tokenizer of everything but ByT5: added tokens, normaliser, pre-tokenizer, model, special
// tokens around, decoder. The readers of the file formats fill in the parts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/tokenizer.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/decoder.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pre_tokenizer.h"
#include "models/tokenizers/token_model.h"

namespace quintet {

struct SpecialIds {
  int32_t eos = -1, pad = -1, unk = -1, bos = -1;
};

struct PipelineParts {
  AddedTokens added;
  NormalizerPtr normalizer;       // may be null
  PreTokenizerPtr pre_tokenizer;  // may be null
  std::unique_ptr<const TokenModel> model;
  DecoderPtr decoder;  // null: tokens joined by spaces

  // Put around the text when special tokens are asked for.
  std::vector<int32_t> prefix, suffix;
  bool suffix_once = false;  // no suffix where the text already ends in it
  SpecialIds ids;
  bool trim_offsets = false,
       trim_add_prefix_space = false;  // byte-level spans without their spaces
  bool clean_up_spaces = false;
};

class Pipeline : public Tokenizer {
 public:
  // INVALID_ARGUMENT (without the file's name) as AddedTokens::Finish.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Make(PipelineParts parts);

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              bool add_special_tokens) const override;
  absl::StatusOr<std::vector<TokenSpan>> EncodeWithSpans(std::string_view text,
                                                         bool add_special_tokens) const override;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const override;
  std::string Piece(int32_t id) const override;
  int32_t PieceToId(std::string_view piece) const override;
  bool IsSpecial(int32_t id) const override;
  int64_t vocab_size() const override;
  int32_t eos_id() const override { return parts_.ids.eos; }
  int32_t pad_id() const override { return parts_.ids.pad; }
  int32_t unk_id() const override { return parts_.ids.unk; }
  int32_t bos_id() const override { return parts_.ids.bos; }

 private:
  explicit Pipeline(PipelineParts parts) : parts_(std::move(parts)) {}

  // How long the normalizer has made what it has seen of a text.
  struct Growth {
    size_t bytes = 0, grown = 0;
  };
  // Tokens of `text`, spans in the text as given.
  absl::StatusOr<TokenList> Run(std::string_view text, bool tracked) const;
  absl::Status RunNormalized(AlignedText text, Growth* growth, TokenList* tokens) const;
  void RunPieces(AlignedText text, TokenList* tokens) const;
  void TrimSpans(std::string_view text, TokenList* tokens) const;
  void AddSpecialTokens(uint32_t text_bytes, TokenList* tokens) const;

  PipelineParts parts_;
};

}  // namespace quintet
