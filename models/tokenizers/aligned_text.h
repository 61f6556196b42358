// A text that is being normalized. It can store, for each of its bytes, the range of bytes of the
// original input from which the byte comes.
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
  // text[i] comes from bytes [begin[i], end[i]) of the original input. In each array the values
  // never decrease, and all bytes of one character have the same value. Both arrays are empty
  // unless `tracked` is true: tracking costs more than most normalizations, and only token spans
  // need it.
  std::vector<uint32_t> begin, end;
  bool tracked = false;
  // Length in bytes of the prefix of `text` that comes from the original input's first character.
  // Set even if `tracked` is false, because Metaspace's prepend scheme "first" needs it.
  size_t first_character_bytes = 0;

  // Makes a text that is not normalized yet and begins at byte `origin` of the original input.
  AlignedText(std::string_view text, uint32_t origin, bool tracked);
  AlignedText() = default;

  AlignedText Slice(size_t from, size_t to) const;
  // Returns the bytes [begin, end) of the original input that text bytes [from, to) come from; {0,
  // 0} if not tracked or from == to.
  std::pair<uint32_t, uint32_t> Origin(size_t from, size_t to) const {
    if (!tracked || from >= to) return {0, 0};
    return {begin[from], end[to - 1]};
  }
};

// Builds a changed copy of a text, the old text. The alignment of the copy (which bytes of the
// original input each byte comes from) is derived from the alignment of the old text.
class Rewriter {
 public:
  explicit Rewriter(const AlignedText& in) : in_(in) {
    out_.tracked = in.tracked;
    out_.text.reserve(in.text.size() + in.text.size() / 8);
  }
  // Copies bytes [from, to) of the old text and their alignment (origins in the original input).
  void Keep(size_t from, size_t to) {
    out_.text.append(in_.text, from, to - from);
    if (from < in_.first_character_bytes)
      out_.first_character_bytes =
          out_.text.size() - (to - std::min(to, in_.first_character_bytes));
    if (!in_.tracked) return;
    out_.begin.insert(out_.begin.end(), in_.begin.begin() + from, in_.begin.begin() + to);
    out_.end.insert(out_.end.end(), in_.end.begin() + from, in_.end.begin() + to);
  }
  // Appends `bytes` to the new text. They get the alignment of the character at byte `source` of
  // the old text.
  void Put(std::string_view bytes, size_t source) {
    out_.text.append(bytes);
    if (source < in_.first_character_bytes) out_.first_character_bytes = out_.text.size();
    if (!in_.tracked) return;
    out_.begin.insert(out_.begin.end(), bytes.size(), in_.begin[source]);
    out_.end.insert(out_.end.end(), bytes.size(), in_.end[source]);
  }
  // Appends `bytes`, the replacement of bytes [from, to) of the old text, to the new text. The n-th
  // character of `bytes` gets the alignment of the n-th character of the replaced range. If `bytes`
  // has more characters, the remaining ones get the alignment of the range's last character.
  void Replace(std::string_view bytes, size_t from, size_t to);
  // Returns whether text that replaces old text at or after byte `source` needs an alignment (its
  // origin in the original input). If not, it may be appended directly to *untracked_output().
  bool tracks(size_t source) const { return in_.tracked || source < in_.first_character_bytes; }
  std::string* untracked_output() { return &out_.text; }
  size_t size() const { return out_.text.size(); }
  AlignedText Take() { return std::move(out_); }

 private:
  const AlignedText& in_;
  AlignedText out_;
};

// Builds a changed copy of a text character by character. The argument `change` says how a new
// character changes the old text, as in Hugging Face's tokenizers: 0 replaces the next old
// character, 1 inserts a new character, and -n replaces the next n + 1 old characters by one. For a
// deletion at the start of a text Hugging Face's tokenizers pass wrong numbers, which shift their
// alignments. The same error is made here, because Metaspace's prepend scheme "first" depends on
// the alignment.
class CharacterRewriter {
 public:
  explicit CharacterRewriter(const AlignedText& in) : in_(in), rewriter_(in) {}
  void Put(uint32_t code_point, int change);
  // Writes ASCII characters; each replaces the next character of the old text (change 0).
  void PutUnchanged(std::string_view ascii);
  // Makes the last written character replace also the next `count` characters of the old text.
  void Absorb(int count) {
    if (pending_) pending_->change -= count;
  }
  size_t size() const { return rewriter_.size(); }
  AlignedText Take();

 private:
  struct Character {
    uint32_t code_point;
    int change;
  };
  void Flush();

  const AlignedText& in_;
  Rewriter rewriter_;
  std::optional<Character> pending_;  // last character written; Absorb may change it
  size_t source_ = 0;                 // byte of the next character of the old text
};

}  // namespace quintet
