// Text of a growing list of token ids: detokenizes step by step, finds stop strings, and hands out
// only text that no later token can change. The pieces handed out, put together, are the final text
// byte for byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "models/tokenizer.h"

namespace quintet {

// Tokenizer::Decode over a growing list, without decoding everything at each token: a window of
// recent tokens is decoded, whose beginning moves on only where that is seen to leave the text as
// it was. Without a tokenizer (null) the text stays empty.
class IncrementalText {
 public:
  IncrementalText(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  void Push(int32_t id);
  // Decode of all ids so far. The part before settled_bytes() does not change any more: it excludes
  // bytes of an unfinished UTF-8 sequence or run of byte tokens, and what the clean-up of spaces
  // before punctuation may still join.
  const std::string& text() const { return text_; }
  size_t settled_bytes() const { return settled_bytes_; }

 private:
  void MoveWindow();
  size_t SettledEnd() const;

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::vector<int32_t> window_;  // the last ids
  std::string window_text_;      // their decode; a suffix of text_, or of what text_ would be
  std::string text_;
  size_t run_begin_ = 0;  // bytes of text before the current run of byte tokens
  bool in_byte_run_ = false;
  size_t settled_bytes_ = 0;
};

struct StopMatch {
  size_t begin = std::string::npos;  // byte offset in the text; npos: none
  size_t which = 0;                  // index of the stop string
};
// The earliest occurrence in text[from..]; of several at one place the first listed.
StopMatch FindStop(std::string_view text, size_t from, const std::vector<std::string>& stops);

struct TextOptions {
  bool skip_special_tokens = true;
  bool include_stop = false;
  std::vector<std::string> stops;
};

class TextStream {
 public:
  // Without a tokenizer (null) chunks carry ids only, each at once; there may be no stop strings.
  // Ids pushed with `echo` before the first generated one belong to the text but not to the search
  // for stop strings.
  TextStream(const Tokenizer* tokenizer, TextOptions options);

  void PushEcho(int32_t id);
  // Returns true when a stop string has appeared in the settled text: nothing may be pushed after
  // it.
  bool Push(int32_t id);
  // No more ids: everything settles. Returns true when a stop string shows up now.
  bool Finish();

  bool stopped() const { return match_.begin != std::string::npos; }
  const std::string& matched_stop() const { return options_.stops[match_.which]; }
  // The final text, once stopped or finished.
  std::string_view FinalText() const;

  // What has become stable since the last call. Nothing of a stop string's possible beginning is
  // given out.
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
  size_t search_from_ = 0;  // no stop string begins before this
  StopMatch match_;
  size_t released_bytes_ = 0;  // stable text
  size_t taken_bytes_ = 0;
  bool finished_ = false;
  // Ids wait until the text they end at is released.
  std::vector<int32_t> ids_;
  std::vector<size_t> id_ends_;  // bytes of text after each
  size_t taken_ids_ = 0;
};

}  // namespace quintet
