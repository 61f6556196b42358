#include "models/tokenizers/pre_tokenizer.h"

#include <algorithm>

#include "models/tokenizers/byte_level.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

using Piece = SplitText::Piece;

struct Part {
  uint32_t begin, end;
  bool matched;
};

// Joins the parts of one piece, which cover it, as `behavior` says.
void AddParts(std::vector<Part>* parts, SplitBehavior behavior, std::vector<Piece>* pieces) {
  const auto add = [&](uint32_t begin, uint32_t end) {
    if (begin < end) pieces->push_back({begin, end});
  };
  const size_t first = pieces->size();
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const Part& part : *parts) add(part.begin, part.end);
      break;
    case SplitBehavior::kRemoved:
      for (const Part& part : *parts) {
        if (!part.matched) add(part.begin, part.end);
      }
      break;
    case SplitBehavior::kContiguous:
    case SplitBehavior::kMergedWithPrevious: {
      bool previous = false;
      for (const Part& part : *parts) {
        const bool joins = behavior == SplitBehavior::kContiguous ? part.matched == previous
                                                                  : part.matched && !previous;
        previous = part.matched;
        if (joins && pieces->size() > first) {
          pieces->back().end = part.end;
        } else {
          add(part.begin, part.end);
        }
      }
      break;
    }
    case SplitBehavior::kMergedWithNext: {
      bool previous = false;
      for (auto part = parts->rbegin(); part != parts->rend(); ++part) {
        const bool joins = part->matched && !previous;
        previous = part->matched;
        if (joins && pieces->size() > first) {
          pieces->back().begin = part->begin;
        } else {
          add(part->begin, part->end);
        }
      }
      std::reverse(pieces->begin() + static_cast<ptrdiff_t>(first), pieces->end());
      break;
    }
  }
}

// Splits every piece where `for_each_match(piece text, on_match(begin, end))` finds something.
template <typename ForEachMatch>
void SplitPieces(SplitText* split, SplitBehavior behavior, bool invert,
                 ForEachMatch for_each_match) {
  std::vector<Piece> pieces;
  std::vector<Part> parts;
  for (const Piece& piece : split->pieces) {
    const std::string_view text =
        std::string_view(split->text.text).substr(piece.begin, piece.end - piece.begin);
    parts.clear();
    uint32_t covered = piece.begin;
    for_each_match(text, [&](size_t begin, size_t end) {
      const uint32_t from = piece.begin + static_cast<uint32_t>(begin),
                     to = piece.begin + static_cast<uint32_t>(end);
      if (covered < from) parts.push_back({covered, from, invert});
      if (from < to) parts.push_back({from, to, !invert});
      covered = to;
    });
    if (covered < piece.end) parts.push_back({covered, piece.end, invert});
    AddParts(&parts, behavior, &pieces);
  }
  split->pieces = std::move(pieces);
}

// Each code point of `text` with the flag is a match of its own.
template <typename OnMatch>
void MatchFlag(std::string_view text, UnicodeFlag flag, OnMatch on_match) {
  for (size_t at = 0; at < text.size();) {
    int length;
    const bool has = Unicode().Has(DecodeUtf8(text.data() + at, &length), flag);
    if (has) on_match(at, at + static_cast<size_t>(length));
    at += static_cast<size_t>(length);
  }
}

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)),
        scheme_(scheme),
        split_(split),
        delimiter_(Pattern::Literal(replacement_)) {}

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
    SplitPieces(
        split, SplitBehavior::kMergedWithNext, false,
        [&](std::string_view piece, auto on_match) { delimiter_.ForEachMatch(piece, on_match); });
  }
  bool needs_tracking() const override { return scheme_ == PrependScheme::kFirst; }

 private:
  bool Prepends(const SplitText& split, const Piece& piece) const {
    const std::string_view text =
        std::string_view(split.text.text).substr(piece.begin, piece.end - piece.begin);
    if (scheme_ == PrependScheme::kNever || text[0] == ' ' ||
        text.substr(0, replacement_.size()) == replacement_) {
      return false;
    }
    return scheme_ == PrependScheme::kAlways || split.text.begin[piece.begin] == 0;
  }

  std::string replacement_;
  PrependScheme scheme_;
  bool split_;
  Pattern delimiter_;
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
      if (split->text.tracked) {
        for (size_t i = piece.begin; i < piece.end; ++i) {
          rewriter.Put(ByteLevelCharacter(split->text.text[i]), i);
        }
      } else {
        const std::string_view bytes =
            std::string_view(split->text.text).substr(piece.begin, piece.end - piece.begin);
        rewriter.PutUntracked([&](std::string* text) { AppendByteLevelCharacters(bytes, text); });
      }
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
  bool needs_tracking() const override {
    return std::any_of(steps_.begin(), steps_.end(),
                       [](const auto& step) { return step->needs_tracking(); });
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
