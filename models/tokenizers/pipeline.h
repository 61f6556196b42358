// The stages that all tokenizers have. Encoding: added tokens, normalizer, pre-tokenizer, token
// model, special tokens before and after the text. Decoding: decoder. The readers of the file
// formats fill in PipelineParts.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/decoder.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/pre_tokenizer.h"
#include "models/tokenizers/token_model.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

struct SpecialIds {
  int32_t eos = -1, pad = -1, unk = -1, bos = -1;
};

struct PipelineParts {
  AddedTokens added;
  NormalizerPtr normalizer;       // may be null
  PreTokenizerPtr pre_tokenizer;  // may be null
  std::unique_ptr<const TokenModel> model;
  DecoderPtr decoder;  // null: tokens are joined by spaces

  // Token ids that Encode adds before and after the ids of the text if it is called with
  // add_special_tokens.
  std::vector<int32_t> prefix, suffix;
  bool suffix_once = false;  // do not add the suffix if the text's ids end in it
  SpecialIds ids;
  // trim_offsets: remove leading and trailing white space from token spans. trim_add_prefix_space:
  // when trimming, keep a single leading space of the first token, because add_prefix_space may
  // have added it.
  bool trim_offsets = false, trim_add_prefix_space = false;
  bool clean_up_spaces = false;
};

class Pipeline : public Tokenizer {
 public:
  // Returns INVALID_ARGUMENT (the message does not name the file) if AddedTokens::Finish fails.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Make(PipelineParts parts);

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              bool add_special_tokens) const override;
  absl::StatusOr<std::vector<TokenSpan>> EncodeWithSpans(std::string_view text,
                                                         bool add_special_tokens) const override;
  std::string Decode(std::span<const int32_t> ids, bool skip_special_tokens) const override;
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

  // Bytes before and after normalization, summed over the segments of a text (the parts between
  // added tokens) that have been normalized so far.
  struct Growth {
    size_t input_bytes = 0, output_bytes = 0;
  };
  // Returns the tokens of `text` without the special tokens before and after it. Spans (in bytes of
  // `text`) are set only if `tracked` is true.
  absl::StatusOr<TokenList> Run(std::string_view text, bool tracked) const;
  absl::Status RunNormalized(AlignedText text, Growth* growth, TokenList* tokens) const;
  void RunPieces(AlignedText text, TokenList* tokens) const;
  void TrimSpans(std::string_view text, TokenList* tokens) const;
  void AddSpecialTokens(uint32_t text_bytes, TokenList* tokens) const;

  PipelineParts parts_;
};

}  // namespace quintet
