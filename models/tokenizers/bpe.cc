#include "models/tokenizers/bpe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
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
  QT_RETURN_IF_ERROR(bpe->AddMerges());
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

// Calls add(id, begin, end) for each initial symbol of a piece, that is, each symbol before any
// merge: `id` is its token id, and [begin, end) are its bytes in the piece.
template <typename Add>
void Bpe::ForEachSymbol(std::string_view piece, Add add) const {
  // An unknown character becomes byte tokens if byte fallback is possible, otherwise the unknown
  // token, if there is one. As in Hugging Face's tokenizers, byte tokens are added immediately, but
  // an unknown token only at the next known character, at the next unknown token that is not fused
  // with it, or at the end of the piece. Byte tokens in between therefore precede it.
  TokenList::Span held = {0, 0};
  const auto release = [&] {
    if (held.begin < held.end) add(unknown, held.begin, held.end);
    held = {0, 0};
  };
  for (uint32_t at = 0; at < piece.size();) {
    int length;
    DecodeUtf8(piece.data() + at, &length);
    const uint32_t end = at + static_cast<uint32_t>(length);
    const std::string_view character = piece.substr(at, static_cast<size_t>(length));
    const int32_t id = Symbol(character, at == 0, end == piece.size());
    if (id >= 0) {
      release();
      add(id, at, end);
    } else if (options_.byte_fallback && bytes_.HasAll(character)) {
      for (uint32_t i = at; i < end; ++i) add(bytes_.ids[static_cast<uint8_t>(piece[i])], i, i + 1);
    } else if (unknown >= 0) {
      if (!options_.fuse_unknown) release();
      if (held.begin == held.end) held.begin = at;
      held.end = end;
    }
    at = end;
  }
  release();
}

void Bpe::Encode(std::string_view piece, TokenList* tokens) const {
  if (options_.ignore_merges) {
    const int32_t whole = vocabulary.Find(piece);
    if (whole >= 0) return tokens->Add(whole, 0, static_cast<uint32_t>(piece.size()));
  }
  std::vector<int32_t> symbols;
  std::vector<TokenList::Span> spans;  // filled only if tokens->tracked
  symbols.reserve(piece.size());
  ForEachSymbol(piece, [&](int32_t id, uint32_t begin, uint32_t end) {
    symbols.push_back(id);
    if (tokens->tracked) spans.push_back({begin, end});
  });
  MergeSymbols(merges_, &symbols);
  const auto is_token = [](int32_t symbol) { return symbol > kJoined; };
  tokens->Reserve(static_cast<size_t>(std::count_if(symbols.begin(), symbols.end(), is_token)));
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (is_token(symbols[i])) {
      tokens->ids.push_back(symbols[i]);
      if (tokens->tracked) tokens->spans.push_back(spans[i]);
    } else if (tokens->tracked) {
      tokens->spans.back().end = spans[i].end;
    }
  }
}

}  // namespace quintet
