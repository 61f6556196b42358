#include "models/tokenizers/pipeline.h"

#include <algorithm>
#include <span>
#include <tuple>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/byte_level.h"
#include "models/tokenizers/unicode.h"

namespace quintet {
namespace {

// Replaces invalid UTF-8 by U+FFFD. If `tracked`, each byte of the result is aligned with the bytes
// of `text` that it comes from.
AlignedText Repair(std::string_view text, bool tracked) {
  AlignedText repaired;
  repaired.tracked = tracked;
  for (size_t at = 0; at < text.size();) {
    const int valid = Utf8Length(text.substr(at));
    const size_t length =
        valid > 0 ? static_cast<size_t>(valid) : InvalidPartLength(text.substr(at));
    const std::string_view bytes = valid > 0 ? text.substr(at, length) : kReplacement;
    repaired.text.append(bytes);
    if (at == 0) repaired.first_character_bytes = bytes.size();
    if (tracked) {
      repaired.begin.insert(repaired.begin.end(), bytes.size(), static_cast<uint32_t>(at));
      repaired.end.insert(repaired.end.end(), bytes.size(), static_cast<uint32_t>(at + length));
    }
    at += length;
  }
  return repaired;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> Pipeline::Make(PipelineParts parts) {
  QT_CHECK(parts.model != nullptr);
  if (absl::Status status = parts.added.Finish(parts.normalizer.get()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("added tokens: ", status.message()));
  }
  return absl::WrapUnique<const Tokenizer>(new Pipeline(std::move(parts)));
}

absl::StatusOr<std::vector<int32_t>> Pipeline::Encode(std::string_view text,
                                                      bool add_special_tokens) const {
  QT_ASSIGN_OR_RETURN(TokenList tokens, Run(text, false));
  if (add_special_tokens) AddSpecialTokens(static_cast<uint32_t>(text.size()), &tokens);
  return std::move(tokens.ids);
}

absl::StatusOr<std::vector<TokenSpan>> Pipeline::EncodeWithSpans(std::string_view text,
                                                                 bool add_special_tokens) const {
  QT_ASSIGN_OR_RETURN(TokenList tokens, Run(text, true));
  if (parts_.trim_offsets) TrimSpans(text, &tokens);
  if (add_special_tokens) AddSpecialTokens(static_cast<uint32_t>(text.size()), &tokens);
  std::vector<TokenSpan> spans(tokens.ids.size());
  for (size_t i = 0; i < spans.size(); ++i)
    spans[i] = {tokens.ids[i], tokens.spans[i].begin, tokens.spans[i].end};
  return spans;
}

void Pipeline::AddSpecialTokens(uint32_t text_bytes, TokenList* tokens) const {
  const std::vector<int32_t>& prefix = parts_.prefix;
  const std::vector<int32_t>& suffix = parts_.suffix;
  std::vector<int32_t>& ids = tokens->ids;
  const bool ends_in_suffix =
      ids.size() >= suffix.size() &&
      std::equal(suffix.begin(), suffix.end(), ids.end() - static_cast<ptrdiff_t>(suffix.size()));
  if (!(parts_.suffix_once && ends_in_suffix)) {
    for (const int32_t id : suffix) tokens->Add(id, text_bytes, text_bytes);
  }
  ids.insert(ids.begin(), prefix.begin(), prefix.end());
  if (tokens->tracked) {
    tokens->spans.insert(tokens->spans.begin(), prefix.size(), TokenList::Span{0, 0});
  }
}

absl::StatusOr<TokenList> Pipeline::Run(std::string_view text, bool tracked) const {
  TokenList tokens;
  Growth growth;
  tokens.tracked = tracked;
  AlignedText repaired;
  const bool valid = IsUtf8(text);
  if (!valid) repaired = Repair(text, tracked);
  const std::string_view source = valid ? text : std::string_view(repaired.text);
  for (const AddedTokens::Segment& segment : parts_.added.Split(source, AddedTokens::Text::kRaw)) {
    const size_t length = segment.end - segment.begin;
    if (segment.id >= 0) {
      uint32_t begin = static_cast<uint32_t>(segment.begin),
               end = static_cast<uint32_t>(segment.end);
      if (!valid) std::tie(begin, end) = repaired.Origin(begin, end);
      tokens.Add(segment.id, begin, end);
    } else {
      AlignedText part = valid ? AlignedText(text.substr(segment.begin, length),
                                             static_cast<uint32_t>(segment.begin), tracked)
                               : repaired.Slice(segment.begin, segment.end);
      QT_RETURN_IF_ERROR(RunNormalized(std::move(part), &growth, &tokens));
    }
  }
  return tokens;
}

absl::Status Pipeline::RunNormalized(AlignedText text, Growth* growth, TokenList* tokens) const {
  growth->input_bytes += text.text.size();
  if (parts_.normalizer != nullptr) {
    QT_RETURN_IF_ERROR(parts_.normalizer->Apply(&text));
  }
  growth->output_bytes += text.text.size();
  QT_RETURN_IF_ERROR(CheckGrowth(growth->input_bytes, growth->output_bytes));
  const auto segments = parts_.added.Split(text.text, AddedTokens::Text::kNormalized);
  if (segments.size() == 1 && segments[0].id < 0) {
    RunPieces(std::move(text), tokens);
    return absl::OkStatus();
  }
  for (const AddedTokens::Segment& segment : segments) {
    if (segment.id < 0) {
      RunPieces(text.Slice(segment.begin, segment.end), tokens);
    } else {
      const auto [begin, end] = text.Origin(segment.begin, segment.end);
      tokens->Add(segment.id, begin, end);
    }
  }
  return absl::OkStatus();
}

void Pipeline::RunPieces(AlignedText text, TokenList* tokens) const {
  SplitText split{std::move(text), {}};
  split.pieces.push_back({0, static_cast<uint32_t>(split.text.text.size())});
  if (parts_.pre_tokenizer != nullptr) parts_.pre_tokenizer->Apply(&split);
  for (const SplitText::Piece& piece : split.pieces) {
    size_t token = tokens->spans.size();
    parts_.model->Encode(
        std::string_view(split.text.text).substr(piece.begin, piece.end - piece.begin), tokens);
    for (; token < tokens->spans.size(); ++token) {
      TokenList::Span& span = tokens->spans[token];
      auto [begin, end] = split.text.Origin(piece.begin + span.begin, piece.begin + span.end);
      if (span.begin == span.end) begin = end = split.text.begin[piece.begin + span.begin];
      span = {begin, end};
    }
  }
}

// Removes white space at the start and the end of each token's spelling from its span, as Hugging
// Face's tokenizers do. A single leading space of the first token is kept if trim_add_prefix_space.
void Pipeline::TrimSpans(std::string_view text, TokenList* tokens) const {
  for (size_t i = 0; i < tokens->ids.size(); ++i) {
    const int32_t id = tokens->ids[i];
    TokenList::Span& span = tokens->spans[i];
    const bool added = parts_.added.FindId(id) != nullptr && id != parts_.model->unknown;
    const std::string piece =
        added ? std::string(text.substr(span.begin, span.end - span.begin)) : Piece(id);
    uint32_t leading = 0, trailing = 0, characters = 0;
    for (size_t at = 0; at < piece.size(); ++characters) {
      int length = 1;
      const uint32_t code_point = Utf8Length(std::string_view(piece).substr(at)) > 0
                                      ? DecodeUtf8(piece.data() + at, &length)
                                      : 0;
      const bool space = code_point == kByteLevelSpace || Unicode().Has(code_point, kWhiteSpace);
      if (space && leading == characters) ++leading;
      trailing = space ? trailing + 1 : 0;
      at += static_cast<size_t>(length);
    }
    const bool first = i == 0 || span.begin == 0;
    if (first && parts_.trim_add_prefix_space && leading == 1) leading = 0;
    for (; leading > 0 && span.begin < span.end; --leading) {
      ++span.begin;
      while (span.begin < span.end && IsUtf8Continuation(text[span.begin])) ++span.begin;
    }
    for (; trailing > 0 && span.begin < span.end; --trailing) {
      --span.end;
      while (span.begin < span.end && IsUtf8Continuation(text[span.end])) --span.end;
    }
  }
}

std::string Pipeline::Decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const AddedToken* added = parts_.added.FindId(id);
    const bool known = added != nullptr || parts_.model->vocabulary.Has(id);
    if (!known || (skip_special_tokens && added != nullptr && added->hidden)) continue;
    tokens.push_back(added != nullptr ? added->decoded : parts_.model->vocabulary.Piece(id));
  }
  std::string text;
  if (parts_.decoder != nullptr) {
    parts_.decoder->Apply(&tokens);
    for (const std::string& token : tokens) text += token;
  } else {
    for (size_t i = 0; i < tokens.size(); ++i) text.append(i == 0 ? "" : " ").append(tokens[i]);
  }
  if (parts_.clean_up_spaces) CleanUpSpaces(&text);
  return text;
}

std::string Pipeline::Piece(int32_t id) const {
  const AddedToken* added = parts_.added.FindId(id);
  return added != nullptr ? added->content : parts_.model->vocabulary.Piece(id);
}

int32_t Pipeline::PieceToId(std::string_view piece) const {
  const AddedToken* added = parts_.added.FindContent(piece);
  return added != nullptr ? added->id : parts_.model->vocabulary.Find(piece);
}

bool Pipeline::IsSpecial(int32_t id) const {
  const AddedToken* added = parts_.added.FindId(id);
  return added != nullptr && added->special;
}

int64_t Pipeline::vocab_size() const {
  return std::max<int64_t>(parts_.model->vocabulary.size(), parts_.added.highest_id() + int64_t{1});
}

}  // namespace quintet
