#include "models/tokenizers/added_tokens.h"

#include <algorithm>

#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

// Returns the last code point before byte `end` (> 0) and sets *begin to its first byte.
uint32_t CodePointBefore(std::string_view text, size_t end, size_t* begin) {
  size_t at = end - 1;
  while (at > 0 && IsUtf8Continuation(text[at])) --at;
  *begin = at;
  int length;
  return DecodeUtf8(text.data() + at, &length);
}

bool IsWordAt(std::string_view text, size_t at) {
  int length;
  return at < text.size() && Unicode().Has(DecodeUtf8(text.data() + at, &length), kWord);
}

bool IsWordBefore(std::string_view text, size_t end) {
  size_t begin;
  return end > 0 && Unicode().Has(CodePointBefore(text, end, &begin), kWord);
}

bool IsSpace(uint32_t code_point, bool separators) {
  return Unicode().Has(code_point, kWhiteSpace) ||
         (separators && code_point >= 0x1C && code_point <= 0x1F);
}

size_t SpaceEnd(std::string_view text, size_t at, bool separators) {
  while (at < text.size()) {
    int length;
    if (!IsSpace(DecodeUtf8(text.data() + at, &length), separators)) break;
    at += static_cast<size_t>(length);
  }
  return at;
}

size_t SpaceBegin(std::string_view text, size_t end, size_t limit, bool separators) {
  while (end > limit) {
    size_t begin;
    if (!IsSpace(CodePointBefore(text, end, &begin), separators)) break;
    end = begin;
  }
  return end;
}

}  // namespace

void AddedTokens::Add(AddedToken token) {
  if (token.content.empty()) return;
  highest_id_ = std::max(highest_id_, token.id);
  const auto same = by_content_.find(token.content);
  const size_t place = same == by_content_.end() ? tokens_.size() : same->second;
  if (place < tokens_.size()) by_id_.erase(tokens_[place].id);
  by_id_[token.id] = place;
  by_content_[token.content] = place;
  if (place == tokens_.size()) {
    tokens_.push_back(std::move(token));
  } else {
    tokens_[place] = std::move(token);
  }
}

absl::Status AddedTokens::Finish(const Normalizer* normalizer) {
  std::vector<std::string> contents(tokens_.size());
  StringMap<int32_t> raw, normalized;
  size_t input_bytes = 0, output_bytes = 0;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    AlignedText content(tokens_[i].content, 0, false);
    if (tokens_[i].normalized && normalizer != nullptr) {
      QT_RETURN_IF_ERROR(normalizer->Apply(&content));
    }
    input_bytes += tokens_[i].content.size();
    output_bytes += content.text.size();
    QT_RETURN_IF_ERROR(CheckGrowth(input_bytes, output_bytes));
    tokens_[i].decoded = content.text;
    auto& keys = tokens_[i].normalized ? normalized : raw;
    if (!content.text.empty()) keys.try_emplace(std::move(content.text), static_cast<int32_t>(i));
  }
  for (AddedToken& token : tokens_) {
    const AddedToken* spelled = FindContent(token.decoded);
    token.hidden = spelled != nullptr && spelled->special;
  }
  const auto build = [](const StringMap<int32_t>& keys) {
    return KeySearch(std::vector<std::pair<std::string_view, int32_t>>(keys.begin(), keys.end()));
  };
  raw_ = build(raw);
  normalized_ = build(normalized);
  return absl::OkStatus();
}

const AddedToken* AddedTokens::FindId(int32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &tokens_[it->second];
}

const AddedToken* AddedTokens::FindContent(std::string_view content) const {
  const auto it = by_content_.find(content);
  return it == by_content_.end() ? nullptr : &tokens_[it->second];
}

std::vector<AddedTokens::Segment> AddedTokens::Split(std::string_view text, Text kind) const {
  KeyMatches matches = (kind == Text::kRaw ? raw_ : normalized_).Find(text);
  std::vector<Segment> segments;
  size_t done = 0, at = 0;
  size_t spaces_end = 0;  // end of the white space scanned for rstrip, so that it is scanned once
  while (const KeyMatch* match = matches.From(at)) {
    const AddedToken& token = tokens_[static_cast<size_t>(match->value)];
    size_t begin = match->begin, end = begin + match->length;
    at = end;
    if (splits_special_ && token.special) continue;
    if (token.single_word && (IsWordBefore(text, begin) || IsWordAt(text, end))) continue;
    // With lstrip, the segment of a token includes the white space before it. The segment must not
    // begin before `done`, the end of the previous segment. If the previous token has rstrip, its
    // segment may already include the white space between the two tokens, and even white space with
    // which this token itself begins.
    if (token.lstrip) begin = std::max(SpaceBegin(text, begin, done, strips_separators_), done);
    if (token.rstrip) {
      if (end >= spaces_end) spaces_end = SpaceEnd(text, end, strips_separators_);
      end = spaces_end;
    }
    if (done < begin) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
  return segments;
}

}  // namespace quintet
