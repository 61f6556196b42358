// SentencePiece models (spiece.model), as the sentencepiece library computes them, with the T5
// family's special tokens around: text is cut at </s>, <pad>, <unk> and the sentinels first, and
// eos is appended unless it is there.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/charsmap.h"
#include "models/tokenizers/decoder.h"
#include "models/tokenizers/key_search.h"
#include "models/tokenizers/normalizer.h"
#include "models/tokenizers/settings.h"
#include "models/tokenizers/token_model.h"

namespace quintet {

// `bytes` is the file, `where` its name. UNIMPLEMENTED for word models and denormalisation rules.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseSentencePiece(
    std::string_view bytes, const std::string& where, const TokenizerSettings& settings);

// The parts, for the reader and for tests.
struct SentencePieceSpaces {
  bool add_dummy_prefix = true, remove_extra = true, escape = true, suffix = false;
};
// User-defined symbols are left as they are.
NormalizerPtr MakeSentencePieceNormalizer(Charsmap charsmap, KeySearch user_defined,
                                          SentencePieceSpaces spaces);
DecoderPtr MakeSentencePieceDecoder(SentencePieceSpaces spaces, bool has_bytes);

// Unlike tokenizer.json's BPE, a merge needs only that its result is a piece; the order is that of
// the pieces' scores.
struct SentencePieceVocabulary {
  Vocabulary vocabulary;
  std::vector<float> scores;
  std::vector<uint8_t> types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte
  int32_t unknown = 0;
  bool byte_fallback = false;
};
KeySearch UserDefinedPieces(const Vocabulary& vocabulary, const std::vector<uint8_t>& types);
// INVALID_ARGUMENT as Unigram::Make.
absl::StatusOr<std::unique_ptr<const TokenModel>> MakeSentencePieceUnigram(
    SentencePieceVocabulary pieces);
std::unique_ptr<const TokenModel> MakeSentencePieceBpe(SentencePieceVocabulary pieces);
std::unique_ptr<const TokenModel> MakeSentencePieceChar(SentencePieceVocabulary pieces);

}  // namespace quintet
