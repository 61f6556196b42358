#include "models/tokenizers/aligned_text.h"

#include <algorithm>

#include "models/tokenizers/unicode.h"

namespace quintet {

AlignedText::AlignedText(std::string_view text, uint32_t origin, bool tracked)
    : text(text), tracked(tracked) {
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
  if (tracked) {
    slice.begin.assign(begin.begin() + from, begin.begin() + to);
    slice.end.assign(end.begin() + from, end.begin() + to);
  }
  return slice;
}

void Rewriter::Replace(std::string_view bytes, size_t from, size_t to) {
  if (!in_.tracked) {
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

AlignedText Transform(const AlignedText& in, const std::vector<ChangedCharacter>& characters) {
  Rewriter rewriter(in);
  size_t source = 0;
  const auto advance = [&] {
    int length = 0;
    if (source < in.text.size()) DecodeUtf8(in.text.data() + source, &length);
    source += static_cast<size_t>(length);
  };
  std::string bytes;
  for (const ChangedCharacter& character : characters) {
    bytes.clear();
    AppendUtf8(character.code_point, &bytes);
    const bool is_new = character.change > 0 || source >= in.text.size();
    rewriter.Put(bytes, is_new && source > 0 ? source - 1 : source);
    for (int skipped = character.change; skipped <= 0; ++skipped) advance();
  }
  return rewriter.Take();
}

}  // namespace quintet
