// A text during normalization, with the input position of each of its bytes.
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
  // begin[i], end[i]: the input bytes [begin, end) that text[i] comes from. Both are ascending, and
  // equal for all bytes of one character. Empty if not tracked: tracking costs more than most
  // normalizations, and only token spans need it.
  std::vector<uint32_t> begin, end;
  bool tracked = false;
  // Length in bytes of the prefix of `text` that comes from the input's first character. Known even
  // if not tracked, because Metaspace's "first" scheme needs it.
  size_t first_character_bytes = 0;

  // `text` is the part of the input that begins at input byte `origin`.
  AlignedText(std::string_view text, uint32_t origin, bool tracked);
  AlignedText() = default;

  AlignedText Slice(size_t from, size_t to) const;
  // Input bytes of the non-empty range [from, to); {0, 0} if not tracked.
  std::pair<uint32_t, uint32_t> Origin(size_t from, size_t to) const {
    if (!tracked || from >= to) return {0, 0};
    return {begin[from], end[to - 1]};
  }
};

// Writes a changed copy of a text and carries its alignment over.
class Rewriter {
 public:
  explicit Rewriter(const AlignedText& in) : in_(in) {
    out_.tracked = in.tracked;
    out_.text.reserve(in.text.size() + in.text.size() / 8);
  }
  // Copies bytes [from, to) of the old text.
  void Keep(size_t from, size_t to) {
    out_.text.append(in_.text, from, to - from);
    if (from < in_.first_character_bytes)
      out_.first_character_bytes =
          out_.text.size() - (to - std::min(to, in_.first_character_bytes));
    if (!in_.tracked) return;
    out_.begin.insert(out_.begin.end(), in_.begin.begin() + from, in_.begin.begin() + to);
    out_.end.insert(out_.end.end(), in_.end.begin() + from, in_.end.begin() + to);
  }
  // Writes new bytes aligned with the character at byte `source` of the old text.
  void Put(std::string_view bytes, size_t source) {
    out_.text.append(bytes);
    if (source < in_.first_character_bytes) out_.first_character_bytes = out_.text.size();
    if (!in_.tracked) return;
    out_.begin.insert(out_.begin.end(), bytes.size(), in_.begin[source]);
    out_.end.insert(out_.end.end(), bytes.size(), in_.end[source]);
  }
  // Replaces characters [from, to) one by one: the n-th new character is aligned with the n-th old
  // one. New characters in excess are aligned with the last old one.
  void Replace(std::string_view bytes, size_t from, size_t to);
  // True if the alignment of output for old bytes from `source` on is needed. If false, that output
  // may be appended directly to *untracked_output().
  bool tracks(size_t source) const { return in_.tracked || source < in_.first_character_bytes; }
  std::string* untracked_output() { return &out_.text; }
  size_t size() const { return out_.text.size(); }
  AlignedText Take() { return std::move(out_); }

 private:
  const AlignedText& in_;
  AlignedText out_;
};

// Writes a changed copy character by character and counts changes as HF's tokenizers do: change 0
// replaces the next old character, 1 inserts a new one, and -n replaces the next old character and
// the n after it. HF's alignments drift where this count is wrong (a deletion at the start of a
// text). The error is reproduced here, because Metaspace's "first" scheme depends on the alignment.
class CharacterRewriter {
 public:
  explicit CharacterRewriter(const AlignedText& in) : in_(in), rewriter_(in) {}
  void Put(uint32_t code_point, int change);
  // Writes ASCII characters, each of which replaces one old character.
  void PutUnchanged(std::string_view ascii);
  // The last character written replaces `count` more old characters.
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
  std::optional<Character> pending_;  // last character; Absorb may still change it
  size_t source_ = 0;                 // byte of the next old character
};

}  // namespace quintet
