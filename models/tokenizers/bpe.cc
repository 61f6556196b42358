#include "models/tokenizers/bpe.h"

#include "absl/strings/str_cat.h"
#include "models/tokenizers/unicode.h"

namespace quintet {

Bpe::Bpe(Vocabulary given, BpeOptions options)
    : options_(std::move(options)), bytes_(given), characters_(1024, -1) {
  vocabulary = std::move(given);
  unknown = options_.unknown_token.empty() ? -1 : vocabulary.Find(options_.unknown_token);
  for (uint32_t c = 0; c < characters_.size(); ++c) {
    std::string character;
    AppendUtf8(c, &character);
    characters_[c] = vocabulary.Find(character);
  }
}

absl::StatusOr<std::unique_ptr<Bpe>> Bpe::Make(Vocabulary vocabulary, BpeOptions options) {
  std::unique_ptr<Bpe> bpe(new Bpe(std::move(vocabulary), std::move(options)));
  if (absl::Status status = bpe->AddMerges(); !status.ok()) return status;
  if (!bpe->options_.unknown_token.empty() && bpe->unknown < 0) {
    return absl::InvalidArgumentError(absl::StrCat("unk_token \"",
                                                   bpe->options_.unknown_token.substr(0, 64),
                                                   "\": expected a piece of the vocabulary"));
  }
  return bpe;
}

absl::Status Bpe::AddMerges() {
  merges_.Reserve(options_.merges.size());
  const size_t prefix = options_.continuing_subword_prefix.size();
  uint32_t rank = 0;
  for (const auto& [left, right] : options_.merges) {
    const auto missing = [&](const std::string& piece) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, " (\"", left.substr(0, 64), "\", \"", right.substr(0, 64),
                       "\"): expected \"", piece.substr(0, 128), "\" in the vocabulary"));
    };
    const int32_t left_id = vocabulary.Find(left), right_id = vocabulary.Find(right);
    if (left_id < 0) return missing(left);
    if (right_id < 0) return missing(right);
    if (right.size() < prefix) return missing(options_.continuing_subword_prefix + right);
    const std::string whole = left + right.substr(prefix);
    const int32_t whole_id = vocabulary.Find(whole);
    if (whole_id < 0) return missing(whole);
    merges_.Set(left_id, right_id, {rank++, whole_id});
  }
  options_.merges = {};
  return absl::OkStatus();
}

int32_t Bpe::Symbol(std::string_view character, bool first, bool last) const {
  const bool adds_prefix = !first && !options_.continuing_subword_prefix.empty();
  const bool adds_suffix = last && !options_.end_of_word_suffix.empty();
  if (adds_prefix || adds_suffix) {
    std::string spelled(character);
    if (adds_prefix) spelled = options_.continuing_subword_prefix + spelled;
    if (adds_suffix) spelled += options_.end_of_word_suffix;
    return vocabulary.Find(spelled);
  }
  int length;
  const uint32_t code_point = DecodeUtf8(character.data(), &length);
  return code_point < characters_.size() ? characters_[code_point] : vocabulary.Find(character);
}

void Bpe::Encode(std::string_view piece, std::vector<PieceToken>* tokens) const {
  if (options_.ignore_merges) {
    const int32_t whole = vocabulary.Find(piece);
    if (whole >= 0) {
      tokens->push_back({whole, 0, static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  std::vector<BpeSymbol> symbols;
  symbols.reserve(piece.size());
  // HF holds an unknown token back until the next known character, past byte pieces.
  BpeSymbol held = {-1, 0, 0};
  const auto release = [&] {
    if (held.id >= 0) symbols.push_back(held);
    held.id = -1;
  };
  for (uint32_t at = 0; at < piece.size();) {
    int length;
    DecodeUtf8(piece.data() + at, &length);
    const uint32_t end = at + static_cast<uint32_t>(length);
    const std::string_view character = piece.substr(at, static_cast<size_t>(length));
    const int32_t id = Symbol(character, at == 0, end == piece.size());
    if (id >= 0) {
      release();
      symbols.push_back({id, at, end});
    } else if (std::vector<PieceToken> bytes;
               options_.byte_fallback &&
               bytes_.Append(character, at, BytePieces::Cover::kEach, &bytes)) {
      for (const PieceToken& byte : bytes) symbols.push_back({byte.id, byte.begin, byte.end});
    } else if (unknown >= 0) {
      if (held.id >= 0 && options_.fuse_unknown) {
        held.end = end;
      } else {
        release();
        held = {unknown, at, end};
      }
    }
    at = end;
  }
  release();
  MergeSymbols(merges_, &symbols);
  for (const BpeSymbol& symbol : symbols) tokens->push_back({symbol.id, symbol.begin, symbol.end});
}

}  // namespace quintet
