#include "models/tokenizers/pre_tokenizer.h"

#include <algorithm>

#include "models/tokenizers/byte_level.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

using Piece = SplitText::Piece;

// Turns the parts of one piece into new pieces according to a SplitBehavior. A part is a delimiter
// (`matched` is true) or the text between two delimiters. Parts must be added in order and cover
// the piece.
class PartJoiner {
 public:
  PartJoiner(SplitBehavior behavior, std::vector<Piece>* pieces)
      : behavior_(behavior), pieces_(pieces), first_(pieces->size()) {}

  void Add(uint32_t begin, uint32_t end, bool matched) {
    if (begin == end || (matched && behavior_ == SplitBehavior::kRemoved)) return;
    if (pieces_->size() > first_ && Joins(matched)) {
      pieces_->back().end = end;
    } else {
      pieces_->push_back({begin, end});
    }
    previous_matched_ = matched;
  }

 private:
  bool Joins(bool matched) const {
    switch (behavior_) {
      case SplitBehavior::kContiguous:
        return matched == previous_matched_;
      case SplitBehavior::kMergedWithPrevious:
        return matched && !previous_matched_;
      case SplitBehavior::kMergedWithNext:
        return !matched && previous_matched_;
      default:
        return false;
    }
  }

  SplitBehavior behavior_;
  std::vector<Piece>* pieces_;
  size_t first_;  // index in *pieces_ of the first new piece
  bool previous_matched_ = false;
};

// Splits each piece at its delimiters. for_each_match(text, on_match) must call on_match(begin,
// end) for each match in the text of a piece. The delimiters are the matches or, if `invert` is
// true, the text between the matches.
template <typename ForEachMatch>
void SplitPieces(SplitText* split, SplitBehavior behavior, bool invert,
                 ForEachMatch for_each_match) {
  std::vector<Piece> pieces;
  for (const Piece& piece : split->pieces) {
    const std::string_view text =
        std::string_view(split->text.text).substr(piece.begin, piece.end - piece.begin);
    PartJoiner joiner(behavior, &pieces);
    uint32_t covered = piece.begin;
    for_each_match(text, [&](size_t begin, size_t end) {
      const uint32_t from = piece.begin + static_cast<uint32_t>(begin),
                     to = piece.begin + static_cast<uint32_t>(end);
      joiner.Add(covered, from, invert);
      joiner.Add(from, to, !invert);
      covered = to;
    });
    joiner.Add(covered, piece.end, invert);
  }
  split->pieces = std::move(pieces);
}

// Calls on_match(begin, end) for each code point with the property `flag`; the code point is bytes
// [begin, end) of `text`.
template <typename OnMatch>
void MatchFlag(std::string_view text, UnicodeFlag flag, OnMatch on_match) {
  const UnicodeTables& unicode = Unicode();
  for (size_t at = 0; at < text.size();) {
    int length = 1;
    uint32_t code_point = static_cast<uint8_t>(text[at]);
    if (code_point >= 128) code_point = DecodeUtf8(text.data() + at, &length);
    if (unicode.Has(code_point, flag)) on_match(at, at + static_cast<size_t>(length));
    at += static_cast<size_t>(length);
  }
}

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)), scheme_(scheme), split_(split) {}

  void Apply(SplitText* split) const override {
    const std::string_view text = split->text.text;
    Rewriter rewriter(split->text);
    for (Piece& piece : split->pieces) {
      const uint32_t begin = static_cast<uint32_t>(rewriter.size());
      if (Prepends(*split, piece)) rewriter.Put(replacement_, piece.begin);
      for (size_t at = piece.begin; at < piece.end;) {
        const size_t space = std::min<size_t>(text.substr(0, piece.end).find(' ', at), piece.end);
        rewriter.Keep(at, space);
        if (space < piece.end) rewriter.Put(replacement_, space);
        at = space + 1;
      }
      piece = {begin, static_cast<uint32_t>(rewriter.size())};
    }
    split->text = rewriter.Take();
    if (!split_) return;
    const size_t length = replacement_.size();
    SplitPieces(split, SplitBehavior::kMergedWithNext, false,
                [&](std::string_view piece, auto on_match) {
                  for (size_t at = piece.find(replacement_); at != std::string_view::npos;
                       at = piece.find(replacement_, at + length)) {
                    on_match(at, at + length);
                  }
                });
  }

 private:
  bool Prepends(const SplitText& split, const Piece& piece) const {
    const std::string_view text =
        std::string_view(split.text.text).substr(piece.begin, piece.end - piece.begin);
    if (scheme_ == PrependScheme::kNever || text[0] == ' ' ||
        text.substr(0, replacement_.size()) == replacement_) {
      return false;
    }
    return scheme_ == PrependScheme::kAlways || piece.begin < split.text.first_character_bytes;
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
};

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<const Pattern> pattern)
      : add_prefix_space_(add_prefix_space), pattern_(std::move(pattern)) {}

  void Apply(SplitText* split) const override {
    if (add_prefix_space_) AddSpaces(split);
    if (pattern_ != nullptr) {
      SplitPieces(
          split, SplitBehavior::kIsolated, false,
          [&](std::string_view piece, auto on_match) { pattern_->ForEachMatch(piece, on_match); });
    }
    Rewriter rewriter(split->text);
    for (Piece& piece : split->pieces) {
      const uint32_t begin = static_cast<uint32_t>(rewriter.size());
      const std::string_view text = split->text.text;
      size_t at = piece.begin;
      for (; at < piece.end && rewriter.tracks(at); ++at)
        rewriter.Put(ByteLevelCharacter(text[at]), at);
      AppendByteLevelCharacters(text.substr(at, piece.end - at), rewriter.untracked_output());
      piece = {begin, static_cast<uint32_t>(rewriter.size())};
    }
    split->text = rewriter.Take();
  }

 private:
  static void AddSpaces(SplitText* split) {
    Rewriter rewriter(split->text);
    for (Piece& piece : split->pieces) {
      const uint32_t begin = static_cast<uint32_t>(rewriter.size());
      if (split->text.text[piece.begin] != ' ') rewriter.Put(" ", piece.begin);
      rewriter.Keep(piece.begin, piece.end);
      piece = {begin, static_cast<uint32_t>(rewriter.size())};
    }
    split->text = rewriter.Take();
  }

  bool add_prefix_space_;
  std::unique_ptr<const Pattern> pattern_;
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void Apply(SplitText* split) const override {
    SplitPieces(split, behavior_, invert_, [&](std::string_view piece, auto on_match) {
      pattern_.ForEachMatch(piece, on_match);
    });
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class FlagSplit : public PreTokenizer {
 public:
  FlagSplit(UnicodeFlag flag, SplitBehavior behavior) : flag_(flag), behavior_(behavior) {}
  void Apply(SplitText* split) const override {
    SplitPieces(split, behavior_, false,
                [&](std::string_view piece, auto on_match) { MatchFlag(piece, flag_, on_match); });
  }

 private:
  UnicodeFlag flag_;
  SplitBehavior behavior_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<PreTokenizerPtr> steps) : steps_(std::move(steps)) {}
  void Apply(SplitText* split) const override {
    for (const PreTokenizerPtr& step : steps_) step->Apply(split);
  }

 private:
  std::vector<PreTokenizerPtr> steps_;
};

}  // namespace

PreTokenizerPtr MakeMetaspace(std::string replacement, PrependScheme scheme, bool split) {
  return std::make_unique<Metaspace>(std::move(replacement), scheme, split);
}
PreTokenizerPtr MakeByteLevel(bool add_prefix_space, std::unique_ptr<const Pattern> pattern) {
  return std::make_unique<ByteLevel>(add_prefix_space, std::move(pattern));
}
PreTokenizerPtr MakeSplit(Pattern pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}
PreTokenizerPtr MakeWhitespaceSplit() {
  return std::make_unique<FlagSplit>(kWhiteSpace, SplitBehavior::kRemoved);
}
PreTokenizerPtr MakePunctuation(SplitBehavior behavior) {
  return std::make_unique<FlagSplit>(kPunctuation, behavior);
}
PreTokenizerPtr MakeDigits(bool individual) {
  return std::make_unique<FlagSplit>(
      kNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
}
PreTokenizerPtr MakePreTokenizerSequence(std::vector<PreTokenizerPtr> steps) {
  return std::make_unique<PreTokenizerSequence>(std::move(steps));
}

}  // namespace quintet
