// A text on its way through normalisation, with the place in the input that each of its bytes came
// from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quintet {

struct AlignedText {
  std::string text;  // valid UTF-8
  // Input bytes [begin, end) behind each byte of `text`, ascending; the bytes of one character
  // agree. Empty when not tracked: following them costs more than most normalisation, and only
  // token spans need them.
  std::vector<uint32_t> begin, end;
  bool tracked = false;
  // How many bytes, all in front, come from the input's first character. Known in any case:
  // Metaspace's "first" scheme asks for it.
  size_t at_start = 0;

  // `text` is input bytes from `origin` on.
  AlignedText(std::string_view text, uint32_t origin, bool tracked);
  AlignedText() = default;

  AlignedText Slice(size_t from, size_t to) const;
  // Input bytes of the non-empty range [from, to); {0, 0} when not tracked.
  std::pair<uint32_t, uint32_t> Origin(size_t from, size_t to) const {
    if (!tracked || from >= to) return {0, 0};
    return {begin[from], end[to - 1]};
  }
};

// Writes a changed copy of a text.
class Rewriter {
 public:
  explicit Rewriter(const AlignedText& in) : in_(in) {
    out_.tracked = in.tracked;
    out_.text.reserve(in.text.size() + in.text.size() / 8);
  }
  // Copies bytes [from, to) of the old text.
  void Keep(size_t from, size_t to) {
    out_.text.append(in_.text, from, to - from);
    if (from < in_.at_start) out_.at_start = out_.text.size() - (to - std::min(to, in_.at_start));
    if (!in_.tracked) return;
    out_.begin.insert(out_.begin.end(), in_.begin.begin() + from, in_.begin.begin() + to);
    out_.end.insert(out_.end.end(), in_.end.begin() + from, in_.end.begin() + to);
  }
  // Writes new bytes that stand for the character at byte `source` of the old text.
  void Put(std::string_view bytes, size_t source) {
    out_.text.append(bytes);
    if (source < in_.at_start) out_.at_start = out_.text.size();
    if (!in_.tracked) return;
    out_.begin.insert(out_.begin.end(), bytes.size(), in_.begin[source]);
    out_.end.insert(out_.end.end(), bytes.size(), in_.end[source]);
  }
  // Replaces characters one by one: the n-th new one stands for the n-th old one of [from, to),
  // those left over for the last.
  void Replace(std::string_view bytes, size_t from, size_t to);
  // True when it matters what stands for bytes of the old text from `source` on. Where not, they
  // may be written without a word about it.
  bool follows(size_t source) const { return in_.tracked || source < in_.at_start; }
  std::string* unfollowed() { return &out_.text; }
  size_t size() const { return out_.text.size(); }
  AlignedText Take() { return std::move(out_); }

 private:
  const AlignedText& in_;
  AlignedText out_;
};

// Writes a changed copy character by character, as HF's tokenizers count changes: 0 takes the place
// of the next old character, 1 is new, -n takes that place and those of n more. Where this loses
// count (a deletion at the start of a text), so do the alignments of that library, and Metaspace's
// "first" scheme depends on them.
class Transformer {
 public:
  explicit Transformer(const AlignedText& in) : in_(in), rewriter_(in) {}
  void Put(uint32_t code_point, int change);
  // ASCII characters, each in the place of an old one.
  void PutUnchanged(std::string_view ascii);
  // The last character takes the places of `count` more old ones.
  void Absorb(int count) {
    if (held_) held_->change -= count;
  }
  size_t size() const { return rewriter_.size(); }
  AlignedText Take();

 private:
  struct Character {
    uint32_t code_point;
    int change;
  };
  void Release();

  const AlignedText& in_;
  Rewriter rewriter_;
  std::optional<Character> held_;  // may still absorb others; only while that matters
  size_t source_ = 0;              // the next old character
};

}  // namespace quintet
