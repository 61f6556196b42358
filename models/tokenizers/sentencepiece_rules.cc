#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/charsmap.h"
#include "models/tokenizers/sentencepiece.h"
#include "models/tokenizers/t5.h"
#include "models/tokenizers/unicode.h"
#include "models/tokenizers/unigram.h"

namespace quintet {
namespace {

// Applies the file's normalization rules (at each position the longest rule that matches), then
// SentencePiece's rules for spaces.
class SentencePieceNormalizer : public Normalizer {
 public:
  SentencePieceNormalizer(Charsmap rules, bool add_prefix, bool remove_extra)
      : rules_(std::move(rules)), add_prefix_(add_prefix), remove_extra_(remove_extra) {}

  absl::Status Apply(AlignedText* text) const override {
    if (!rules_.empty()) QT_RETURN_IF_ERROR(ApplyRules(text));
    const std::string& old = text->text;
    size_t begin = 0, end = old.size();
    while (remove_extra_ && begin < end && old[begin] == ' ') ++begin;
    while (remove_extra_ && begin < end && old[end - 1] == ' ') --end;
    Rewriter rewriter(*text);
    if (add_prefix_ && begin < end) rewriter.Put(" ", begin);
    while (begin < end) {
      const size_t space = std::min(old.find(' ', begin), end);
      size_t next = std::min(space + 1, end);
      rewriter.Keep(begin, next);
      while (remove_extra_ && next < end && old[next] == ' ') ++next;
      begin = next;
    }
    *text = rewriter.Take();
    return absl::OkStatus();
  }

 private:
  absl::Status ApplyRules(AlignedText* text) const {
    const std::string_view old = text->text;
    Rewriter rewriter(*text);
    for (size_t at = 0; at < old.size() && rewriter.size() <= old.size() + kMaxAddedBytes;) {
      const Charsmap::Match match = rules_.Longest(old.substr(at));
      int length = 1;
      // In a damaged file, a rule may match only a part of a character, or its replacement may not
      // be UTF-8. Such a rule is skipped.
      const size_t end = at + match.length;
      const bool whole = end == old.size() || !IsUtf8Continuation(old[end]);
      if (match.length > 0 && whole && IsUtf8(match.replacement)) {
        length = static_cast<int>(match.length);
        rewriter.Replace(match.replacement, at, at + match.length);
      } else {
        DecodeUtf8(old.data() + at, &length);
        rewriter.Keep(at, at + static_cast<size_t>(length));
      }
      at += static_cast<size_t>(length);
    }
    const size_t bytes = old.size();
    *text = rewriter.Take();
    return CheckGrowth(bytes, text->text.size());
  }

  Charsmap rules_;  // may be empty
  bool add_prefix_, remove_extra_;
};

absl::Status CheckFile(const SentencePieceFile& file, const std::string& where) {
  if (file.model_type != 1) {
    return InvalidSentencePiece(where, absl::StrCat("model_type: expected 1 (unigram), got ",
                                                    file.model_type, "; use a tokenizer.json"));
  }
  if (!file.escape_whitespaces || file.whitespace_as_suffix) {
    return InvalidSentencePiece(where,
                                "expected escape_whitespaces and no treat_whitespace_as_suffix");
  }
  if (static_cast<int64_t>(file.pieces.size()) > kMaxVocabulary) {
    return InvalidSentencePiece(where, absl::StrCat("pieces: expected at most ", kMaxVocabulary,
                                                    ", got ", file.pieces.size()));
  }
  return absl::OkStatus();
}

// The unigram model of a file, and facts about its pieces.
struct Pieces {
  Vocabulary vocabulary;
  UnigramOptions options;
  int32_t unknown = -1;
  // False if a piece has a space after its first character. Only then can a piece span two words.
  bool within_words = true;
};

absl::StatusOr<Pieces> ReadPieces(const SentencePieceFile& file, const std::string& where) {
  Pieces pieces;
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    const auto id = static_cast<int32_t>(pieces.vocabulary.size());
    const std::string place = absl::StrCat(where, ": piece ", id);
    QT_RETURN_IF_ERROR(CheckPiece(piece, place));
    if (absl::Status status = pieces.vocabulary.Add(piece.piece, id); !status.ok()) {
      return InvalidSentencePiece(where, status.message());
    }
    const bool matched = piece.type == kNormalPiece || piece.type == kUserDefinedPiece;
    pieces.options.scores.push_back(static_cast<double>(piece.score));
    pieces.options.unmatched.push_back(!matched);
    if (piece.type == kNormalPiece) least = std::min<double>(least, piece.score);
    if (piece.type == kNormalPiece) most = std::max<double>(most, piece.score);
    pieces.within_words &= !matched || piece.piece.find(kWordStart, 1) == std::string_view::npos;
    if (piece.type != kUnknownPiece) continue;
    if (pieces.unknown >= 0) {
      return InvalidSentencePiece(place, "expected one unknown piece, got a second one");
    }
    pieces.unknown = id;
  }
  if (pieces.unknown < 0) {
    return InvalidSentencePiece(where, "expected an unknown piece (type 2), got none");
  }
  if (least > most) return InvalidSentencePiece(where, "expected normal pieces (type 1), got none");
  pieces.options.unknown_score = least - 10;
  pieces.options.byte_fallback = file.byte_fallback;
  for (size_t id = 0; id < file.pieces.size(); ++id) {
    if (file.pieces[id].type != kUserDefinedPiece) continue;
    pieces.options.scores[id] = static_cast<double>(file.pieces[id].piece.size()) * most - 0.1;
  }
  return pieces;
}

DecoderPtr MakeDecoder(bool byte_fallback) {
  if (!byte_fallback) return MakeT5Decoder();
  std::vector<DecoderPtr> steps;
  steps.push_back(MakeByteFallbackDecoder());
  steps.push_back(MakeT5Decoder());
  return MakeDecoderSequence(std::move(steps));
}

// Sets *token to the piece `content`, if there is one, unless the settings have set *token.
void SetDefault(const Vocabulary& vocabulary, const char* content,
                std::optional<AddedToken>* token) {
  if (!*token && vocabulary.Find(content) >= 0) *token = SpecialToken(content);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeBySentencePieceRules(
    const SentencePieceFile& file, const std::string& where, const TokenizerSettings& given) {
  QT_RETURN_IF_ERROR(CheckFile(file, where));
  QT_ASSIGN_OR_RETURN(Pieces pieces, ReadPieces(file, where));
  TokenizerSettings settings = given;
  settings.split_special_tokens = true;
  settings.unk = SpecialToken(pieces.vocabulary.Piece(pieces.unknown));
  SetDefault(pieces.vocabulary, "</s>", &settings.eos);
  SetDefault(pieces.vocabulary, "<pad>", &settings.pad);

  PipelineParts parts;
  auto unigram =
      Unigram::Make(std::move(pieces.vocabulary), pieces.unknown, std::move(pieces.options));
  if (!unigram.ok()) return InvalidSentencePiece(where, unigram.status().message());
  parts.model = *std::move(unigram);
  QT_ASSIGN_OR_RETURN(Charsmap rules, Charsmap::Parse(file.charsmap, where));
  parts.normalizer = std::make_unique<SentencePieceNormalizer>(
      std::move(rules), file.add_dummy_prefix, file.remove_extra_whitespaces);
  parts.pre_tokenizer = MakeMetaspace(kWordStart, PrependScheme::kNever, pieces.within_words);
  parts.decoder = MakeDecoder(file.byte_fallback);
  if (absl::Status status = ApplySettings(settings, &parts); !status.ok()) {
    return InvalidSentencePiece(where, status.message());
  }
  if (parts.ids.eos >= 0) parts.suffix = {parts.ids.eos};
  parts.clean_up_spaces = settings.clean_up_spaces;
  auto tokenizer = Pipeline::Make(std::move(parts));
  if (!tokenizer.ok()) return InvalidSentencePiece(where, tokenizer.status().message());
  return tokenizer;
}

}  // namespace quintet
