// Incremental detokenization: turns a growing list of token ids into text, finds stop strings, and
// releases only text that no later token can change. The released pieces, concatenated, are the
// final text byte for byte. Not thread safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Decodes a growing list of token ids. Each Push decodes only a window of recent ids, but the text
// is equal to Tokenizer::Decode of the whole list: the window moves forward only if that provably
// leaves the text unchanged. Without a tokenizer (null) the text stays empty.
class IncrementalText {
 public:
  IncrementalText(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  void Push(int32_t id);
  // Decoded text of all ids so far. Later ids cannot change the bytes before settled_bytes(). They
  // may change the bytes after it: an unfinished UTF-8 sequence or a run of byte tokens at the end
  // of the text, or a space there that the clean-up removes if punctuation follows.
  const std::string& text() const { return text_; }
  size_t settled_bytes() const { return settled_bytes_; }

 private:
  // Removes all but the last `context` ids from the window, the list of recent ids that each Push
  // decodes again. The text of these last ids, decoded alone, must have a character other than a
  // space, equal the end of the window's text, and have at least kContextBytes bytes; otherwise
  // returns false and changes nothing. Must not be called within a run of byte tokens.
  bool MoveWindow(size_t context);
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
// Returns the earliest occurrence of any of `stops` in text[from..]. If several begin at the same
// position, returns the one that comes first in `stops`.
StopMatch FindStop(std::string_view text, size_t from, const std::vector<std::string>& stops);

struct TextOptions {
  bool skip_special_tokens = true;
  bool include_stop = false;
  std::vector<std::string> stops;
};

class TextStream {
 public:
  // Without a tokenizer (null) there must be no stop strings, and Take returns ids without text.
  // PushEcho adds an id of the prompt and must be called before the first Push. Take returns the
  // prompt's text, too, but it is not searched for stop strings.
  TextStream(const Tokenizer* tokenizer, TextOptions options);

  void PushEcho(int32_t id);
  // Returns true when a stop string has appeared in the settled text, which later ids cannot
  // change. Nothing may be pushed after that.
  bool Push(int32_t id);
  // Ends the list of ids; the whole text is now final. Returns true if there is a stop string that
  // Push has not found, because it ends in text that later ids could still have changed.
  bool Finish();

  bool stopped() const { return match_.begin != std::string::npos; }
  const std::string& matched_stop() const { return options_.stops[match_.which]; }
  // The whole text. If a stop string has appeared, the text ends before it (with include_stop:
  // after it). Valid once a stop string has appeared or Finish has been called.
  std::string_view FinalText() const;

  // Returns the text and the ids that have been settled (can no longer change) since the previous
  // Take. Text that may be the beginning of a stop string is held back.
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
  size_t released_bytes_ = 0;  // bytes of final text released so far
  size_t taken_bytes_ = 0;
  bool finished_ = false;
  // All ids pushed so far. Take returns an id in the same chunk as the last byte of the id's text.
  std::vector<int32_t> ids_;
  std::vector<size_t> id_ends_;  // [ids] bytes of text up to and including the id
  size_t taken_ids_ = 0;
};

}  // namespace quintet
