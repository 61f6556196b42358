// Reads spiece.model.
#include "models/tokenizers/sentencepiece.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "models/tokenizers/pipeline.h"
#include "models/tokenizers/sentencepiece.pb.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

constexpr int32_t kUnknownType = 2, kControlType = 3, kByteType = 6;

absl::Status Bad(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

absl::StatusOr<SentencePieceVocabulary> ReadPieces(const spm::Model& model,
                                                   const std::string& where) {
  SentencePieceVocabulary pieces;
  pieces.unknown = -1;
  pieces.byte_fallback = model.trainer_spec().byte_fallback();
  if (model.pieces_size() == 0) return Bad(where, "pieces: expected at least one, got none");
  if (model.pieces_size() > kMaxVocabulary) {
    return Bad(where, absl::StrCat("pieces: expected at most ", kMaxVocabulary, ", got ",
                                   model.pieces_size()));
  }
  int bytes = 0;
  for (int32_t id = 0; id < model.pieces_size(); ++id) {
    const spm::Model::Piece& piece = model.pieces(id);
    const std::string place = absl::StrCat(where, ": piece ", id);
    if (piece.piece().empty()) return Bad(place, "expected a spelling, got none");
    if (!IsUtf8(piece.piece())) return Bad(place, "expected UTF-8");
    if (!std::isfinite(piece.score()))
      return Bad(place, absl::StrCat("expected a finite score, got ", piece.score()));
    if (piece.type() < 1 || piece.type() > kByteType) {
      return Bad(place, absl::StrCat("type: expected 1 to 6, got ", piece.type()));
    }
    if (absl::Status status = pieces.vocabulary.Add(piece.piece(), id); !status.ok()) {
      return Bad(where, std::string(status.message()));
    }
    if (piece.type() == kUnknownType) {
      if (pieces.unknown >= 0)
        return Bad(place, absl::StrCat("second unknown piece after ", pieces.unknown));
      pieces.unknown = id;
    }
    if (piece.type() == kByteType) {
      if (BytePieceValue(piece.piece()) < 0) return Bad(place, "expected a byte piece like <0x0A>");
      ++bytes;
    }
    pieces.scores.push_back(piece.score());
    pieces.types.push_back(static_cast<uint8_t>(piece.type()));
  }
  if (pieces.unknown < 0) return Bad(where, "pieces: expected one of type unknown (2), got none");
  if (pieces.byte_fallback && bytes != 256) {
    return Bad(where, absl::StrCat("byte_fallback: expected 256 byte pieces, got ", bytes));
  }
  return pieces;
}

AddedToken Special(std::string content, int32_t id) {
  AddedToken token;
  token.content = std::move(content);
  token.id = id;
  token.special = true;
  return token;
}

// <extra_id_0> has the highest id, unless the pieces hold the sentinels already, as mT5's do.
absl::Status AddSentinels(const TokenizerSettings& settings, const std::string& where,
                          PipelineParts* parts) {
  const Vocabulary& vocabulary = parts->model->vocabulary;
  const bool has_own = vocabulary.Find("\xE2\x96\x81<extra_id_0>") >= 0;
  const int64_t count = settings.extra_ids.value_or(has_own ? 0 : 100);
  if (vocabulary.size() + count > kMaxVocabulary)
    return Bad(where, "extra_ids: too many for the vocabulary");
  for (int64_t i = count - 1; i >= 0; --i) {
    const std::string content = absl::StrCat("<extra_id_", i, ">");
    const int32_t known = vocabulary.Find(content);
    parts->added.Add(Special(
        content, known >= 0 ? known : static_cast<int32_t>(vocabulary.size() + count - 1 - i)));
  }
  return absl::OkStatus();
}

absl::Status AddSpecialTokens(TokenizerSettings settings, const SentencePieceVocabulary& types,
                              const std::string& where, PipelineParts* parts) {
  const Vocabulary& vocabulary = parts->model->vocabulary;
  // The T5 family's names, where the files give none. A token that is no piece is left out, but not
  // one that the files name.
  const auto name = [&](const char* content, std::optional<AddedToken>* token) {
    if (!*token && vocabulary.Find(content) >= 0) *token = Special(content, -1);
  };
  name("</s>", &settings.eos);
  name("<pad>", &settings.pad);
  if (!settings.unk) settings.unk = Special(vocabulary.Piece(types.unknown), -1);
  if (absl::Status status = AddSentinels(settings, where, parts); !status.ok()) return status;
  if (absl::Status status = ApplySettings(settings, parts); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
  }
  // Control symbols never match text, but no text comes of them either.
  for (int32_t id = 0; id < static_cast<int32_t>(types.types.size()); ++id) {
    if (types.types[static_cast<size_t>(id)] != kControlType || parts->added.FindId(id) != nullptr)
      continue;
    AddedToken token = Special(vocabulary.Piece(id), id);
    token.in_text = false;
    parts->added.Add(std::move(token));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseSentencePiece(
    std::string_view bytes, const std::string& where, const TokenizerSettings& settings) {
  spm::Model model;
  if (bytes.size() > INT32_MAX ||
      !model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad(where, "expected a SentencePiece model (protocol buffer), got other or cut bytes");
  }
  absl::StatusOr<SentencePieceVocabulary> pieces = ReadPieces(model, where);
  if (!pieces.ok()) return pieces.status();
  if (!model.denormalizer_spec().precompiled_charsmap().empty()) {
    return absl::UnimplementedError(
        absl::StrCat(where, ": denormalizer_spec: expected none, got rules"));
  }
  const spm::NormalizerSpec& spec = model.normalizer_spec();
  absl::StatusOr<Charsmap> charsmap = Charsmap::Parse(spec.precompiled_charsmap(), where);
  if (!charsmap.ok()) return charsmap.status();
  const SentencePieceSpaces spaces = {spec.add_dummy_prefix(), spec.remove_extra_whitespaces(),
                                      spec.escape_whitespaces(),
                                      model.trainer_spec().treat_whitespace_as_suffix()};

  SentencePieceVocabulary types;  // what is needed after the model has taken the rest
  types.types = pieces->types;
  types.unknown = pieces->unknown;
  const bool has_bytes = std::count(types.types.begin(), types.types.end(), kByteType) > 0;
  PipelineParts parts;
  parts.normalizer = MakeSentencePieceNormalizer(
      *std::move(charsmap), UserDefinedPieces(pieces->vocabulary, types.types), spaces);
  parts.decoder = MakeSentencePieceDecoder(spaces, has_bytes);
  switch (model.trainer_spec().model_type()) {
    case 1: {
      auto unigram = MakeSentencePieceUnigram(*std::move(pieces));
      if (!unigram.ok()) return Bad(where, std::string(unigram.status().message()));
      parts.model = *std::move(unigram);
      break;
    }
    case 2:
      parts.model = MakeSentencePieceBpe(*std::move(pieces));
      break;
    case 4:
      parts.model = MakeSentencePieceChar(*std::move(pieces));
      break;
    default:
      return absl::UnimplementedError(absl::StrCat(
          where, ": trainer_spec.model_type: expected unigram (1), bpe (2) or char (4), got ",
          model.trainer_spec().model_type()));
  }
  if (absl::Status status = AddSpecialTokens(settings, types, where, &parts); !status.ok())
    return status;
  if (parts.ids.eos >= 0) parts.suffix = {parts.ids.eos};
  parts.suffix_once = true;
  parts.clean_up_spaces = settings.clean_up_spaces;
  auto pipeline = Pipeline::Make(std::move(parts));
  if (!pipeline.ok()) return Bad(where, std::string(pipeline.status().message()));
  return pipeline;
}

}  // namespace quintet
