#include "models/tokenizers/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/charsmap.h"
#include "models/tokenizers/sentencepiece_file.h"
#include "models/tokenizers/t5.h"
#include "models/tokenizers/unicode.h"
#include "models/tokenizers/unigram.h"

namespace quintet {
namespace {

// Adds the file's pieces to *vocabulary, and then the sentinels <extra_id_N> in descending order
// of N, down to 0. A sentinel that is already a piece keeps that piece's id.
absl::Status ReadVocabulary(const SentencePieceFile& file, int64_t sentinels,
                            const std::string& where, Vocabulary* vocabulary,
                            std::vector<double>* scores) {
  const auto count = static_cast<int64_t>(file.pieces.size());
  if (count <= kT5UnknownId) {
    return InvalidSentencePiece(where, absl::StrCat("pieces: expected more than ", kT5UnknownId,
                                                    ", the id of T5's unknown token, got ", count));
  }
  if (count + sentinels > kMaxVocabulary) {
    return InvalidSentencePiece(
        where, absl::StrCat("pieces: expected at most ", kMaxVocabulary, " with ", sentinels,
                            " sentinels, got ", count));
  }
  for (int32_t id = 0; id < count; ++id) {
    const SentencePieceFile::Piece& piece = file.pieces[static_cast<size_t>(id)];
    QT_RETURN_IF_ERROR(CheckPiece(piece, absl::StrCat(where, ": piece ", id)));
    if (absl::Status status = vocabulary->Add(std::string(piece.piece), id); !status.ok())
      return InvalidSentencePiece(where, status.message());
    scores->push_back(static_cast<double>(piece.score));
  }
  for (int64_t i = sentinels - 1; i >= 0; --i) {
    const std::string sentinel = absl::StrCat("<extra_id_", i, ">");
    if (vocabulary->Find(sentinel) >= 0) continue;
    QT_RETURN_IF_ERROR(vocabulary->Add(sentinel, vocabulary->size()));
    scores->push_back(0);
  }
  return absl::OkStatus();
}

// Returns the file's added tokens: its control symbols, as special tokens, and its user-defined
// symbols.
std::vector<AddedToken> SymbolTokens(const SentencePieceFile& file) {
  std::vector<AddedToken> tokens;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (piece.type != kControlPiece && piece.type != kUserDefinedPiece) continue;
    AddedToken token;
    token.content = piece.piece;
    token.special = piece.type == kControlPiece;
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

absl::Status InvalidSentencePiece(const std::string& where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

absl::Status CheckPiece(const SentencePieceFile::Piece& piece, const std::string& place) {
  if (piece.piece.empty()) return InvalidSentencePiece(place, "expected a spelling, got none");
  if (!IsUtf8(piece.piece)) return InvalidSentencePiece(place, "expected UTF-8");
  if (!std::isfinite(piece.score))
    return InvalidSentencePiece(place, absl::StrCat("expected a finite score, got ", piece.score));
  if (piece.type < 1 || piece.type > kBytePiece)
    return InvalidSentencePiece(place, absl::StrCat("type: expected 1 to 6, got ", piece.type));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseSentencePiece(
    std::string_view bytes, const std::string& where, const TokenizerSettings& given) {
  const std::optional<SentencePieceFile> file = ReadSentencePieceFile(bytes);
  if (!file.has_value()) {
    return InvalidSentencePiece(
        where, "expected a SentencePiece model (protocol buffer), got other or truncated data");
  }
  if (given.sentencepiece_rules) return MakeBySentencePieceRules(*file, where, given);
  Vocabulary vocabulary;
  UnigramOptions options;
  QT_RETURN_IF_ERROR(
      ReadVocabulary(*file, T5Sentinels(given), where, &vocabulary, &options.scores));
  options.unknown_score = *std::min_element(options.scores.begin(), options.scores.end()) - 10;
  auto unigram = Unigram::Make(std::move(vocabulary), kT5UnknownId, std::move(options));
  if (!unigram.ok()) return InvalidSentencePiece(where, unigram.status().message());

  PipelineParts parts;
  parts.model = *std::move(unigram);
  if (!file->charsmap.empty()) {
    QT_ASSIGN_OR_RETURN(Charsmap charsmap, Charsmap::Parse(file->charsmap, where));
    parts.normalizer = MakePrecompiled(std::move(charsmap));
  }
  parts.pre_tokenizer = MakeT5PreTokenizer();
  parts.decoder = MakeT5Decoder();
  TokenizerSettings settings = given;
  settings.additional = SymbolTokens(*file);
  auto tokenizer = MakeT5(std::move(settings), std::move(parts));
  if (!tokenizer.ok()) return InvalidSentencePiece(where, tokenizer.status().message());
  return tokenizer;
}

}  // namespace quintet
