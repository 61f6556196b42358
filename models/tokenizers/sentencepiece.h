// Reads SentencePiece models (spiece.model) with the rules of transformers' T5Tokenizer or, for
// UMT5, with those of SentencePiece itself.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/tokenizers/sentencepiece_file.h"
#include "models/tokenizers/settings.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Makes the tokenizer from `bytes`, the content of a SentencePiece file; `where` is its name.
// Returns INVALID_ARGUMENT for bad contents; the message names the file and the place in it, and
// says what was expected and what was found.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseSentencePiece(
    std::string_view bytes, const std::string& where, const TokenizerSettings& settings);

// Makes a tokenizer with SentencePiece's own rules, for UMT5. The text is normalized by the file's
// rules, runs of spaces become one, a space is put before the text, and a unigram model finds the
// pieces. Control symbols, unused pieces and the unknown piece never match; user-defined symbols
// always do. Characters without a piece become bytes if the file enables byte fallback. eos follows
// the text. The result of Encode equals that of the sentencepiece library, except that a
// user-defined symbol which the normalization rules change is not found, and that ties between sums
// of scores may be broken differently (f64 here, f32 there). Returns INVALID_ARGUMENT for BPE, word
// and char models.
absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeBySentencePieceRules(
    const SentencePieceFile& file, const std::string& where, const TokenizerSettings& settings);

// Returns INVALID_ARGUMENT, with a message that begins with `place`, unless the piece has a
// spelling in UTF-8, a finite score and a known type.
absl::Status CheckPiece(const SentencePieceFile::Piece& piece, const std::string& place);
// Returns INVALID_ARGUMENT with the message "where: what".
absl::Status InvalidSentencePiece(const std::string& where, absl::string_view what);

}  // namespace quintet
