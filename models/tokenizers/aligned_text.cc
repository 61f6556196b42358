#include "models/tokenizers/aligned_text.h"

#include <algorithm>

#include "models/tokenizers/unicode.h"

namespace quintet {

AlignedText::AlignedText(std::string_view text, uint32_t origin, bool tracked)
    : text(text), tracked(tracked) {
  if (origin == 0 && !text.empty()) {
    int length;
    DecodeUtf8(text.data(), &length);
    first_character_bytes = static_cast<size_t>(length);
  }
  if (!tracked) return;
  begin.reserve(text.size());
  end.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    int length;
    DecodeUtf8(text.data() + i, &length);
    const uint32_t at = origin + static_cast<uint32_t>(i);
    begin.insert(begin.end(), static_cast<size_t>(length), at);
    end.insert(end.end(), static_cast<size_t>(length), at + static_cast<uint32_t>(length));
    i += static_cast<size_t>(length);
  }
}

AlignedText AlignedText::Slice(size_t from, size_t to) const {
  AlignedText slice;
  slice.text = text.substr(from, to - from);
  slice.tracked = tracked;
  slice.first_character_bytes = std::clamp(first_character_bytes, from, to) - from;
  if (tracked) {
    slice.begin.assign(begin.begin() + from, begin.begin() + to);
    slice.end.assign(end.begin() + from, end.begin() + to);
  }
  return slice;
}

void Rewriter::Replace(std::string_view bytes, size_t from, size_t to) {
  if (!tracks(from)) {
    out_.text.append(bytes);
    return;
  }
  size_t source = from;
  for (size_t i = 0; i < bytes.size();) {
    int length, source_length;
    DecodeUtf8(bytes.data() + i, &length);
    Put(bytes.substr(i, static_cast<size_t>(length)), source);
    i += static_cast<size_t>(length);
    DecodeUtf8(in_.text.data() + source, &source_length);
    if (source + static_cast<size_t>(source_length) < to)
      source += static_cast<size_t>(source_length);
  }
}

void CharacterRewriter::Put(uint32_t code_point, int change) {
  Flush();
  if (!in_.tracked && source_ > in_.first_character_bytes) {
    AppendUtf8(code_point, rewriter_.untracked_output());
  } else {
    pending_ = {code_point, change};
  }
}

void CharacterRewriter::PutUnchanged(std::string_view ascii) {
  while (!ascii.empty() && (in_.tracked || source_ <= in_.first_character_bytes)) {
    Put(static_cast<uint8_t>(ascii[0]), 0);
    ascii.remove_prefix(1);
  }
  rewriter_.untracked_output()->append(ascii);
}

void CharacterRewriter::Flush() {
  if (!pending_) return;
  std::string bytes;
  AppendUtf8(pending_->code_point, &bytes);
  const bool is_new = pending_->change > 0 || source_ >= in_.text.size();
  rewriter_.Put(bytes, is_new && source_ > 0 ? source_ - 1 : source_);
  for (int skipped = pending_->change; skipped <= 0 && source_ < in_.text.size(); ++skipped) {
    int length;
    DecodeUtf8(in_.text.data() + source_, &length);
    source_ += static_cast<size_t>(length);
  }
  pending_.reset();
}

AlignedText CharacterRewriter::Take() {
  Flush();
  return rewriter_.Take();
}

}  // namespace quintet
