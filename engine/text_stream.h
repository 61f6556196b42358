// Incremental detokenization: turns a growing list of token ids into text, finds stop strings, and
// releases only text that no later token can change. The released pieces concatenate to the final
// text byte for byte. Not thread safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Decodes a growing list of token ids: each Push decodes only a window of recent ids, and the text
// is that of Tokenizer::Decode on the whole list. The window advances only if that provably leaves
// the text unchanged. Without a tokenizer (null) the text stays empty.
class IncrementalText {
 public:
  IncrementalText(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  void Push(int32_t id);
  // Decoded text of all ids so far. Bytes before settled_bytes() are final; the rest may change: an
  // unfinished UTF-8 sequence or run of byte tokens, and spaces that the clean-up before
  // punctuation may remove.
  const std::string& text() const { return text_; }
  size_t settled_bytes() const { return settled_bytes_; }

 private:
  void MoveWindow();
  size_t SettledEnd() const;

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> window_;  // ids that are decoded at each Push
  std::string window_text_;      // decoded window_; a suffix of text_
  std::string text_;
  size_t run_begin_ = 0;  // bytes of text before the current run of byte tokens
  bool in_byte_run_ = false;
  size_t settled_bytes_ = 0;
};

struct StopMatch {
  size_t begin = std::string::npos;  // byte offset in the text; npos: none
  size_t which = 0;                  // index of the stop string
};
// Returns the earliest occurrence of any of `stops` in text[from..]; if several begin at one
// position, the first of them in `stops`.
StopMatch FindStop(std::string_view text, size_t from, const std::vector<std::string>& stops);

struct TextOptions {
  bool skip_special_tokens = true;
  bool include_stop = false;
  std::vector<std::string> stops;
};

class TextStream {
 public:
  // Without a tokenizer (null) there must be no stop strings, and Take returns ids without text.
  // PushEcho adds a prompt id and must be called before the first Push. The text of the prompt is
  // returned too, but not searched for stop strings.
  TextStream(const Tokenizer* tokenizer, TextOptions options);

  void PushEcho(int32_t id);
  // Returns true when a stop string has appeared in the settled (final) text. Nothing may be pushed
  // after that.
  bool Push(int32_t id);
  // Ends the list of ids, which makes all text final. Returns true if a stop string appears now.
  bool Finish();

  bool stopped() const { return match_.begin != std::string::npos; }
  const std::string& matched_stop() const { return options_.stops[match_.which]; }
  // The final text, once stopped or finished.
  std::string_view FinalText() const;

  // Text and ids that became final since the last call of Take. Text that may be the beginning of a
  // stop string is held back.
  struct Chunk {
    std::string text;
    std::vector<int32_t> ids;
  };
  Chunk Take();

 private:
  void Release(size_t settled);
  void Search(size_t settled);

  TextOptions options_;
  IncrementalText text_;
  size_t longest_stop_ = 0;
  size_t search_from_ = 0;  // byte; no stop string begins before it
  StopMatch match_;
  size_t released_bytes_ = 0;  // of final text
  size_t taken_bytes_ = 0;
  bool finished_ = false;
  // All ids pushed so far. Take returns an id once the text up to the end of that id is released.
  std::vector<int32_t> ids_;
  std::vector<size_t> id_ends_;  // [ids] bytes of text up to and including the id
  size_t taken_ids_ = 0;
};

}  // namespace quintet
