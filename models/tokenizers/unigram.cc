#include "models/tokenizers/unigram.h"

#include <algorithm>
#include <bit>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

Trie PieceTrie(const Vocabulary& vocabulary, const std::vector<bool>& unmatched) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    const std::string& piece = vocabulary.Piece(id);
    if (!unmatched.empty() && unmatched[static_cast<size_t>(id)]) continue;
    if (!piece.empty()) keys.push_back({piece, id});
  }
  return Trie(std::move(keys));
}

// Values that elements of a Path may have instead of a token id. kUnknownCharacter: one character
// that no piece matches. The unknown token's id cannot be used for it, because Encode takes the
// number of bytes of a path element from the spelling of its id. kUnreached: no path ends at this
// byte.
constexpr int32_t kUnknownCharacter = -1;
constexpr int32_t kUnreached = -2;

}  // namespace

absl::StatusOr<std::unique_ptr<const TokenModel>> Unigram::Make(Vocabulary vocabulary,
                                                                int32_t unknown,
                                                                UnigramOptions options) {
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    const size_t bytes = vocabulary.Piece(id).size();
    if (bytes > kMaxUnigramPieceBytes) {
      return absl::InvalidArgumentError(absl::StrCat("piece ", id, ": expected at most ",
                                                     kMaxUnigramPieceBytes,
                                                     " bytes in a unigram model, got ", bytes));
    }
  }
  return absl::WrapUnique<const TokenModel>(
      new Unigram(std::move(vocabulary), unknown, std::move(options)));
}

Unigram::Unigram(Vocabulary given, int32_t unknown_id, UnigramOptions options)
    : options_(std::move(options)), trie_(PieceTrie(given, options_.unmatched)), bytes_(given) {
  vocabulary = std::move(given);
  unknown = unknown_id;
  static_assert(kMaxPieceBytes <= UINT16_MAX);
  size_t longest = 4;
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    piece_bytes_.push_back(static_cast<uint16_t>(vocabulary.Piece(id).size()));
    longest = std::max<size_t>(longest, piece_bytes_.back());
  }
  window_ = std::bit_ceil(longest + 1);
}

// Viterbi forward pass. Element i of the result is the id of the last piece of the best path over
// the first i bytes. Ids suffice: a piece's length follows from its id, and scores are needed only
// for the last window_ bytes.
Unigram::Path Unigram::BestLastPieces(std::string_view piece) const {
  Path last(piece.size() + 1, kUnreached);
  absl::InlinedVector<double, 64> best_scores(std::min(window_, std::bit_ceil(piece.size() + 1)));
  const size_t mask = best_scores.size() - 1;
  const auto relax = [&](size_t begin, size_t end, double score, int32_t id) {
    const double total = score + best_scores[begin & mask];
    if (last[end] != kUnreached && total <= best_scores[end & mask]) return;
    last[end] = id;
    best_scores[end & mask] = total;
  };
  for (size_t at = 0; at < piece.size();) {
    int length = 1;
    if (static_cast<uint8_t>(piece[at]) >= 128) DecodeUtf8(piece.data() + at, &length);
    bool has_single = false;
    trie_.ForEachPrefix(piece.substr(at), [&](size_t match, int32_t id) {
      relax(at, at + match, options_.scores[static_cast<size_t>(id)], id);
      has_single |= match == static_cast<size_t>(length);
    });
    at += static_cast<size_t>(length);
    if (!has_single) {
      relax(at - static_cast<size_t>(length), at, options_.unknown_score, kUnknownCharacter);
    }
  }
  return last;
}

void Unigram::Encode(std::string_view piece, TokenList* tokens) const {
  Path path = BestLastPieces(piece);
  // Backtrack from the end. The pieces of the best path are written to the end of `path` itself,
  // over elements that have already been read (there is at most one piece per byte).
  size_t first = path.size();
  for (size_t end = piece.size(); end > 0;) {
    const int32_t id = path[end];
    path[--first] = id;
    if (id == kUnknownCharacter) {
      while (IsUtf8Continuation(piece[--end])) continue;
    } else {
      end -= piece_bytes_[static_cast<size_t>(id)];
    }
  }
  tokens->Reserve(path.size() - first);
  TokenList::Span run = {0, 0};  // current run of unknown characters, which becomes one token
  uint32_t at = 0;
  for (; first < path.size(); ++first) {
    int length;
    if (path[first] == kUnknownCharacter) {
      DecodeUtf8(piece.data() + at, &length);
    } else {
      length = piece_bytes_[static_cast<size_t>(path[first])];
    }
    const uint32_t end = at + static_cast<uint32_t>(length);
    if (path[first] == kUnknownCharacter || path[first] == unknown) {
      if (run.begin == run.end) run.begin = at;
      run.end = end;
    } else {
      if (run.begin < run.end) AppendUnknown(piece, run, tokens);
      run = {end, end};
      tokens->Add(path[first], at, end);
    }
    at = end;
  }
  if (run.begin < run.end) AppendUnknown(piece, run, tokens);
}

void Unigram::AppendUnknown(std::string_view piece, TokenList::Span run, TokenList* tokens) const {
  const std::string_view text = piece.substr(run.begin, run.end - run.begin);
  // First look up the whole run of unknown characters in the vocabulary, because the run may be the
  // spelling of a token, such as the unknown token.
  const int32_t id = options_.unmatched.empty() ? vocabulary.Find(text) : -1;
  if (id >= 0) return tokens->Add(id, run.begin, run.end);
  if (options_.byte_fallback && bytes_.Append(text, run.begin, tokens)) return;
  tokens->Add(unknown, run.begin, run.end);
}

}  // namespace quintet
