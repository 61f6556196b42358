// The unigram, bpe and char models of SentencePiece.
#include <algorithm>
#include <cfloat>
#include <unordered_map>

#include "models/string_map.h"
#include "models/tokenizers/bpe_merger.h"
#include "models/tokenizers/sentencepiece.h"
#include "models/tokenizers/unicode.h"
#include "models/tokenizers/unigram.h"

namespace quintet {
namespace {

constexpr uint8_t kNormal = 1, kUserDefined = 4, kUnused = 5;

bool InText(uint8_t type) { return type == kNormal || type == kUserDefined || type == kUnused; }

// What bpe and char models share: unknown symbols run together, or become bytes.
class SymbolModel : public TokenModel {
 public:
  explicit SymbolModel(SentencePieceVocabulary pieces)
      : types_(std::move(pieces.types)),
        user_defined_(UserDefinedPieces(pieces.vocabulary, types_)),
        bytes_(pieces.vocabulary),
        byte_fallback_(pieces.byte_fallback) {
    vocabulary = std::move(pieces.vocabulary);
    unknown = pieces.unknown;
    for (uint8_t c = 0; c < 128; ++c)
      ascii_[c] = vocabulary.Find(std::string(1, static_cast<char>(c)));
  }

 protected:
  // Calls f(begin, end, is_user_defined) for each character or user-defined symbol.
  template <typename F>
  void ForEachSymbol(std::string_view text, F f) const {
    KeyMatches symbols = user_defined_.Find(text);
    for (size_t at = 0; at < text.size();) {
      const size_t symbol = symbols.LengthAt(at);
      int length = 0;
      if (symbol == 0) DecodeUtf8(text.data() + at, &length);
      const size_t end = at + std::max(symbol, static_cast<size_t>(length));
      f(static_cast<uint32_t>(at), static_cast<uint32_t>(end), symbol > 0);
      at = end;
    }
  }

  int32_t IdOf(std::string_view symbol) const {
    const bool is_ascii = symbol.size() == 1;  // of valid UTF-8
    const int32_t id = is_ascii ? ascii_[static_cast<uint8_t>(symbol[0])] : vocabulary.Find(symbol);
    return id < 0 ? unknown : id;
  }

  // Appends the tokens of a text one after the other.
  class Appender {
   public:
    Appender(const SymbolModel& model, std::string_view text, TokenList* tokens)
        : model_(model), text_(text), tokens_(tokens) {}
    void Add(int32_t id, uint32_t begin, uint32_t end) {
      if (id == model_.unknown && model_.byte_fallback_) {
        model_.bytes_.Append(text_.substr(begin, end - begin), begin, BytePieces::Cover::kLast,
                             tokens_);
      } else if (id == model_.unknown && after_unknown_) {
        if (tokens_->tracked) tokens_->spans.back().end = end;
      } else {
        tokens_->Add(id, begin, end);
        after_unknown_ = id == model_.unknown;
      }
    }

   private:
    const SymbolModel& model_;
    std::string_view text_;
    TokenList* tokens_;
    bool after_unknown_ = false;
  };

  std::vector<uint8_t> types_;
  KeySearch user_defined_;
  BytePieces bytes_;
  bool byte_fallback_;
  int32_t ascii_[128];  // -1: none
};

class CharModel : public SymbolModel {
 public:
  using SymbolModel::SymbolModel;
  void Encode(std::string_view piece, TokenList* tokens) const override {
    Appender appender(*this, piece, tokens);
    ForEachSymbol(piece, [&](uint32_t begin, uint32_t end, bool) {
      appender.Add(IdOf(piece.substr(begin, end - begin)), begin, end);
    });
  }
};

class BpeModel : public SymbolModel {
 public:
  explicit BpeModel(SentencePieceVocabulary pieces) : SymbolModel(Prepare(&pieces)) {
    AddSymbols();
    AddMerges(Ranks(pieces.scores));
    FindUnusedParts();
  }

  void Encode(std::string_view piece, TokenList* tokens) const override {
    Appender appender(*this, piece, tokens);
    std::vector<Merged> pending;
    ForEachMerged(piece, 1, [&](const Merged& merged) {
      pending.assign(1, merged);
      while (!pending.empty()) {
        const Merged top = pending.back();
        pending.pop_back();
        if (SplitUnused(top, &pending)) continue;
        const bool is_piece = top.id >= 0 && top.id < static_cast<int32_t>(types_.size());
        appender.Add(is_piece ? top.id : IdOf(piece.substr(top.begin, top.end - top.begin)),
                     top.begin, top.end);
      }
    });
  }

 private:
  struct Merged {
    int32_t id;  // kUnmerged, of a piece, or behind the vocabulary: see characters_
    uint32_t begin, end;
  };

  // Calls f for each symbol that is left of `text` after its merges.
  template <typename F>
  void ForEachMerged(std::string_view text, size_t stop_at, F f) const {
    std::vector<int32_t> symbols;
    symbols.reserve(text.size());
    ForEachSymbol(text, [&](uint32_t begin, uint32_t end, bool user_defined) {
      symbols.push_back(user_defined ? kUnmerged : Symbol(text.substr(begin, end - begin)));
    });
    MergeSymbols(merges_, &symbols, stop_at);
    // The list of symbols says nothing of places in the text: these are found a second time.
    Merged merged = {kUnmerged, 0, 0};
    size_t i = 0;
    ForEachSymbol(text, [&](uint32_t begin, uint32_t end, bool) {
      if (symbols[i] > kJoined) {
        if (i > 0) f(merged);
        merged = {symbols[i], begin, end};
      }
      merged.end = end;
      ++i;
    });
    if (i > 0) f(merged);
  }

  // Keeps the scores for the merges; the base takes the rest.
  static SentencePieceVocabulary Prepare(SentencePieceVocabulary* pieces) {
    SentencePieceVocabulary base;
    base.vocabulary = std::move(pieces->vocabulary);
    base.types = std::move(pieces->types);
    base.unknown = pieces->unknown;
    base.byte_fallback = pieces->byte_fallback;
    return base;
  }

  // Equal scores have equal ranks.
  static std::vector<uint32_t> Ranks(const std::vector<float>& scores) {
    std::vector<uint32_t> order(scores.size()), ranks(scores.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
    for (size_t i = 0; i < order.size(); ++i) {
      const bool equal = i > 0 && scores[order[i]] == scores[order[i - 1]];
      ranks[order[i]] = equal ? ranks[order[i - 1]] : static_cast<uint32_t>(i);
    }
    return ranks;
  }

  // Every character of a piece is a symbol, also those that are no pieces themselves.
  void AddSymbols() {
    int32_t next = static_cast<int32_t>(vocabulary.size());
    for (int32_t id = 0; id < static_cast<int32_t>(types_.size()); ++id) {
      if (!InText(types_[static_cast<size_t>(id)])) continue;
      const std::string& piece = vocabulary.Piece(id);
      for (size_t at = 0; at < piece.size();) {
        int length;
        DecodeUtf8(piece.data() + at, &length);
        const std::string character = piece.substr(at, static_cast<size_t>(length));
        const int32_t known = vocabulary.Find(character);
        const bool in_text = known >= 0 && InText(types_[static_cast<size_t>(known)]);
        if (characters_.try_emplace(character, in_text ? known : next).second && !in_text) ++next;
        at += static_cast<size_t>(length);
      }
    }
  }

  int32_t Symbol(std::string_view symbol) const {
    const auto it = characters_.find(symbol);
    return it == characters_.end() ? -1 : it->second;
  }

  void AddMerges(const std::vector<uint32_t>& ranks) {
    const auto part = [&](std::string_view text) {
      const int32_t id = vocabulary.Find(text);
      return id >= 0 && InText(types_[static_cast<size_t>(id)]) ? id : Symbol(text);
    };
    for (int32_t id = 0; id < static_cast<int32_t>(types_.size()); ++id) {
      if (!InText(types_[static_cast<size_t>(id)])) continue;
      const std::string_view piece = vocabulary.Piece(id);
      for (size_t at = 1; at < piece.size(); ++at) {
        if (IsUtf8Continuation(piece[at])) continue;
        const int32_t left = part(piece.substr(0, at)), right = part(piece.substr(at));
        if (left >= 0 && right >= 0) merges_.Set(left, right, {ranks[static_cast<size_t>(id)], id});
      }
    }
  }

  // An unused piece is a step towards longer ones only; it falls apart into what it was merged
  // from. The merger does not keep that, so the two parts are found here, once for each piece: the
  // same merges in the same order lead to them. (To find them in every text that is encoded would
  // cost the square of a long piece, where unused ones were merged from unused ones.)
  void FindUnusedParts() {
    for (int32_t id = 0; id < static_cast<int32_t>(types_.size()); ++id) {
      if (types_[static_cast<size_t>(id)] != kUnused) continue;
      std::vector<Merged> parts;
      ForEachMerged(vocabulary.Piece(id), 2, [&](const Merged& part) { parts.push_back(part); });
      if (parts.size() == 2) unused_parts_[id] = {parts[0], parts[1]};
    }
  }

  bool SplitUnused(const Merged& symbol, std::vector<Merged>* pending) const {
    const auto found = unused_parts_.find(symbol.id);
    if (found == unused_parts_.end()) return false;
    auto [left, right] = found->second;
    for (Merged* part : {&right, &left}) {
      part->begin += symbol.begin;
      part->end += symbol.begin;
      pending->push_back(*part);
    }
    return true;
  }

  // The parts of unused pieces, by id; places within the piece.
  std::unordered_map<int32_t, std::pair<Merged, Merged>> unused_parts_;
  StringMap<int32_t> characters_;  // ids behind the vocabulary for those that are no pieces
  MergeTable merges_;
};

}  // namespace

KeySearch UserDefinedPieces(const Vocabulary& vocabulary, const std::vector<uint8_t>& types) {
  std::vector<std::pair<std::string_view, int32_t>> keys;
  for (int32_t id = 0; id < static_cast<int32_t>(types.size()); ++id) {
    if (types[static_cast<size_t>(id)] == kUserDefined) keys.push_back({vocabulary.Piece(id), id});
  }
  return KeySearch(keys);
}

absl::StatusOr<std::unique_ptr<const TokenModel>> MakeSentencePieceUnigram(
    SentencePieceVocabulary pieces) {
  UnigramOptions options;
  options.style = UnigramStyle::kSentencePiece;
  options.byte_fallback = pieces.byte_fallback;
  // SentencePiece starts its maximum from the smallest positive float, so that of negative scores
  // is that.
  float lowest = FLT_MAX, highest = FLT_MIN;
  for (size_t id = 0; id < pieces.scores.size(); ++id) {
    if (pieces.types[id] != kNormal) continue;
    lowest = std::min(lowest, pieces.scores[id]);
    highest = std::max(highest, pieces.scores[id]);
  }
  options.unknown_score = lowest - 10.0f;
  for (size_t id = 0; id < pieces.scores.size(); ++id) {
    const uint8_t type = pieces.types[id];
    const float length =
        static_cast<float>(pieces.vocabulary.Piece(static_cast<int32_t>(id)).size());
    options.scores.push_back(type == kUserDefined ? static_cast<double>(length * highest) - 0.1
                                                  : static_cast<double>(pieces.scores[id]));
    options.usable.push_back(type == kNormal || type == kUserDefined);
  }
  return Unigram::Make(std::move(pieces.vocabulary), pieces.unknown, std::move(options));
}

std::unique_ptr<const TokenModel> MakeSentencePieceBpe(SentencePieceVocabulary pieces) {
  return std::make_unique<BpeModel>(std::move(pieces));
}

std::unique_ptr<const TokenModel> MakeSentencePieceChar(SentencePieceVocabulary pieces) {
  return std::make_unique<CharModel>(std::move(pieces));
}

}  // namespace quintet
