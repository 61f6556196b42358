// A reader of server-sent events (text/event-stream).
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace quintet {

class EventReader {
 public:
  // Appends the next bytes of the stream; `piece` may end anywhere, even within a character.
  void Append(absl::string_view piece) { unread_.append(piece.data(), piece.size()); }
  // Returns the data of the next complete event, valid until the next call; unset: there is none
  // yet. Comments, and fields other than data, are skipped.
  std::optional<absl::string_view> Next();
  // Number of bytes appended so far that belong to events which are not complete yet.
  size_t unread_bytes() const { return unread_.size() - begin_ + data_.size(); }
  void Clear();

 private:
  std::string unread_;
  size_t begin_ = 0;  // of the first unread line
  std::string data_;
  bool has_data_ = false;
};

}  // namespace quintet
