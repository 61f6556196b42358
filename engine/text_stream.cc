#include "engine/text_stream.h"

#include <algorithm>
#include <array>

#include "kernels/base/check.h"

namespace quintet {
namespace {

// When the window has `window` tokens or more, all but its last `context` tokens may be removed.
struct WindowMove {
  size_t window, context;
};
// Push tries these moves in order. The first is enough for most tokenizers; with tokens of one byte
// the second is the first one that keeps kContextBytes bytes.
constexpr std::array<WindowMove, 3> kWindowMoves = {{{12, 4}, {16, 8}, {32, 16}}};
// Minimum number of bytes of text that remain in the window: at least twice the length of every
// pattern of kCleaned, because the clean-up may apply a pattern to the output of another pattern.
constexpr size_t kContextBytes = 8;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Hugging Face's clean_up_tokenization removes the first space of each of these patterns.
constexpr std::array<std::string_view, 10> kCleaned = {" .",   " ?",  " !",  " ,",   " ' ",
                                                       " n't", " 'm", " 's", " 've", " 're"};

bool IsByteToken(const std::string& piece) {
  return piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>';
}

// Number of bytes at the end of `text` that begin a UTF-8 character without completing it.
size_t UnfinishedUtf8(std::string_view text) {
  size_t i = text.size();
  while (i > 0 && text.size() - i < 3 && (static_cast<uint8_t>(text[i - 1]) & 0xC0) == 0x80) --i;
  if (i == 0) return 0;
  const uint8_t lead = static_cast<uint8_t>(text[i - 1]);
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  const size_t have = text.size() - i + 1;
  return have < length ? have : 0;
}

// Length of the longest proper prefix of `pattern` that `text` ends with.
size_t EndsWithBeginningOf(std::string_view text, std::string_view pattern) {
  for (size_t n = std::min(text.size(), pattern.size() - 1); n > 0; --n) {
    if (text.ends_with(pattern.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

void IncrementalText::Push(int32_t id) {
  if (tokenizer_ == nullptr) return;
  const bool byte_token = IsByteToken(tokenizer_->Piece(id));
  if (byte_token && !in_byte_run_) run_begin_ = text_.size();
  in_byte_run_ = byte_token;

  window_.push_back(id);
  std::string decoded = tokenizer_->Decode(window_, skip_special_tokens_);
  const size_t common =
      std::mismatch(window_text_.begin(), window_text_.end(), decoded.begin(), decoded.end())
          .first -
      window_text_.begin();
  text_.resize(text_.size() - (window_text_.size() - common));
  text_.append(decoded, common, std::string::npos);
  window_text_ = std::move(decoded);
  settled_bytes_ = std::max(settled_bytes_, SettledEnd());
  if (in_byte_run_) return;  // it is decoded as a whole, so that no part of it may be removed
  for (const WindowMove& move : kWindowMoves) {
    if (window_.size() < move.window || MoveWindow(move.context)) return;
  }
}

bool IncrementalText::MoveWindow(size_t context) {
  const std::vector<int32_t> tail(window_.end() - static_cast<ptrdiff_t>(context), window_.end());
  std::string decoded = tokenizer_->Decode(tail, skip_special_tokens_);
  // The texts can differ because decoding drops a space at the beginning of a text, and because a
  // run of byte tokens is decoded differently if its first tokens are missing.
  const bool visible = decoded.find_first_not_of(' ') != std::string::npos;
  if (!visible || decoded.size() < kContextBytes || !window_text_.ends_with(decoded)) return false;
  window_ = tail;
  window_text_ = std::move(decoded);
  return true;
}

size_t IncrementalText::SettledEnd() const {
  std::string_view text = text_;
  if (in_byte_run_) text = text.substr(0, run_begin_);
  text.remove_suffix(UnfinishedUtf8(text));
  // An unfinished UTF-8 character may be decoded as one or more replacement characters. Those at
  // the end of the text may still change; hence they are not settled.
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  size_t held = 0;
  for (std::string_view pattern : kCleaned)
    held = std::max(held, EndsWithBeginningOf(text, pattern));
  return text.size() - held;
}

StopMatch FindStop(std::string_view text, size_t from, const std::vector<std::string>& stops) {
  StopMatch best;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t at = text.find(stops[i], from);
    if (at < best.begin) best = {at, i};
  }
  return best;
}

TextStream::TextStream(const Tokenizer* tokenizer, TextOptions options)
    : options_(std::move(options)), text_(tokenizer, options_.skip_special_tokens) {
  for (const std::string& stop : options_.stops) {
    longest_stop_ = std::max(longest_stop_, stop.size());
  }
}

void TextStream::PushEcho(int32_t id) {
  text_.Push(id);
  ids_.push_back(id);
  id_ends_.push_back(text_.text().size());
  search_from_ = text_.text().size();
  Release(std::min(text_.settled_bytes(), search_from_));
}

bool TextStream::Push(int32_t id) {
  QT_CHECK(!stopped() && !finished_);
  text_.Push(id);
  ids_.push_back(id);
  id_ends_.push_back(text_.text().size());
  Search(text_.settled_bytes());
  if (!stopped()) Release(text_.settled_bytes());
  return stopped();
}

bool TextStream::Finish() {
  if (finished_) return false;
  finished_ = true;
  if (stopped()) return false;
  Search(text_.text().size());
  if (!stopped()) released_bytes_ = text_.text().size();
  return stopped();
}

void TextStream::Search(size_t settled) {
  if (options_.stops.empty()) return;
  const std::string_view text = std::string_view(text_.text()).substr(0, settled);
  if (text.size() < search_from_) return;
  match_ = FindStop(text, search_from_, options_.stops);
  if (stopped()) {
    const size_t cut = match_.begin + (options_.include_stop ? matched_stop().size() : 0);
    released_bytes_ = std::max(released_bytes_, cut);
    return;
  }
  // A stop string may begin in the last longest_stop_ - 1 bytes and end in later text; therefore
  // the next search includes these bytes.
  const size_t overlap = std::min(text.size() - search_from_, longest_stop_ - 1);
  search_from_ = text.size() - overlap;
}

void TextStream::Release(size_t settled) {
  const std::string_view text = std::string_view(text_.text()).substr(0, settled);
  size_t held = 0;
  for (const std::string& stop : options_.stops) {
    held = std::max(held, EndsWithBeginningOf(text, stop));
  }
  released_bytes_ = std::max(released_bytes_, settled - held);
}

std::string_view TextStream::FinalText() const {
  QT_CHECK(stopped() || finished_);
  return std::string_view(text_.text()).substr(0, released_bytes_);
}

TextStream::Chunk TextStream::Take() {
  Chunk chunk;
  chunk.text = text_.text().substr(taken_bytes_, released_bytes_ - taken_bytes_);
  taken_bytes_ = released_bytes_;
  const bool all = finished_ || stopped();
  while (taken_ids_ < ids_.size() && (all || id_ends_[taken_ids_] <= released_bytes_)) {
    chunk.ids.push_back(ids_[taken_ids_++]);
  }
  return chunk;
}

}  // namespace quintet
