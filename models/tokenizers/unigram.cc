#include "models/tokenizers/unigram.h"

#include <algorithm>

#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

Trie UsableTrie(const Vocabulary& vocabulary, const std::vector<uint8_t>& usable) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    const std::string& piece = vocabulary.Piece(id);
    if (usable[static_cast<size_t>(id)] && !piece.empty()) keys.push_back({piece, id});
  }
  return Trie(std::move(keys));
}

}  // namespace

Unigram::Unigram(Vocabulary given, int32_t unknown_id, UnigramOptions options)
    : options_(std::move(options)), trie_(UsableTrie(given, options_.usable)), bytes_(given) {
  vocabulary = std::move(given);
  unknown = unknown_id;
}

void Unigram::Encode(std::string_view piece, std::vector<PieceToken>* tokens) const {
  if (options_.style == UnigramStyle::kSentencePiece) {
    EncodeSums<float>(piece, tokens);
  } else {
    EncodeSums<double>(piece, tokens);
  }
}

template <typename Sum>
void Unigram::EncodeSums(std::string_view piece, std::vector<PieceToken>* tokens) const {
  // The best way to each byte: its sum, where its last piece begins, and that piece. begin == end:
  // none yet.
  struct Arrival {
    Sum sum = 0;
    uint32_t begin = UINT32_MAX;
    int32_t id = 0;
  };
  std::vector<Arrival> arrivals(piece.size() + 1);
  const auto offer = [&](size_t begin, size_t end, double score, int32_t id) {
    Arrival& arrival = arrivals[end];
    const Sum sum = static_cast<Sum>(score) + arrivals[begin].sum;
    if (arrival.begin != UINT32_MAX && sum <= arrival.sum) return;
    arrival = {sum, static_cast<uint32_t>(begin), id};
  };
  for (size_t at = 0; at < piece.size();) {
    int length;
    DecodeUtf8(piece.data() + at, &length);
    bool has_single = false;
    trie_.ForEachPrefix(piece.substr(at), [&](size_t match, int32_t id) {
      offer(at, at + match, options_.scores[static_cast<size_t>(id)], id);
      has_single |= match == static_cast<size_t>(length);
    });
    if (!has_single) offer(at, at + static_cast<size_t>(length), options_.unknown_score, unknown);
    at += static_cast<size_t>(length);
  }
  // The best path is known from its end. Turned round in place: from here on `begin` and `id` of a
  // byte on it are the end of the piece that starts there, and that piece.
  Arrival last = arrivals[piece.size()];
  for (uint32_t end = static_cast<uint32_t>(piece.size()); end > 0;) {
    const uint32_t begin = last.begin;
    const Arrival before = arrivals[begin];
    arrivals[begin] = {0, end, last.id};
    last = before;
    end = begin;
  }
  // Runs of unknown characters count as one.
  for (uint32_t at = 0; at < piece.size();) {
    PieceToken token{arrivals[at].id, at, arrivals[at].begin};
    while (token.id == unknown && token.end < piece.size() && arrivals[token.end].id == unknown)
      token.end = arrivals[token.end].begin;
    at = token.end;
    Append(piece, token, tokens);
  }
}

void Unigram::Append(std::string_view piece, const PieceToken& token,
                     std::vector<PieceToken>* tokens) const {
  if (token.id != unknown) {
    tokens->push_back(token);
    return;
  }
  const std::string_view text = piece.substr(token.begin, token.end - token.begin);
  if (options_.style == UnigramStyle::kHuggingFace) {
    // The run is looked up once more: it may spell a piece, for instance that of the unknown token
    // itself.
    const int32_t id = vocabulary.Find(text);
    if (id >= 0) {
      tokens->push_back({id, token.begin, token.end});
      return;
    }
    if (options_.byte_fallback && bytes_.Append(text, token.begin, BytePieces::Cover::kAll, tokens))
      return;
  } else if (options_.byte_fallback) {
    for (size_t at = 0; at < text.size();) {
      int length;
      DecodeUtf8(text.data() + at, &length);
      bytes_.Append(text.substr(at, static_cast<size_t>(length)),
                    token.begin + static_cast<uint32_t>(at), BytePieces::Cover::kLast, tokens);
      at += static_cast<size_t>(length);
    }
    return;
  }
  tokens->push_back(token);
}

}  // namespace quintet
