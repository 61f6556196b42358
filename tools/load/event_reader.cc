#include "tools/load/event_reader.h"

#include "absl/strings/strip.h"

namespace quintet {

std::optional<absl::string_view> EventReader::Next() {
  if (!has_data_) data_.clear();
  for (size_t end; (end = unread_.find('\n', begin_)) != std::string::npos;) {
    absl::string_view line = absl::string_view(unread_).substr(begin_, end - begin_);
    begin_ = end + 1;
    absl::ConsumeSuffix(&line, "\r");
    if (line.empty() && has_data_) {
      has_data_ = false;
      return data_;
    }
    if (!absl::ConsumePrefix(&line, "data:")) continue;
    absl::ConsumePrefix(&line, " ");
    if (has_data_) data_ += '\n';
    data_.append(line.data(), line.size());
    has_data_ = true;
  }
  unread_.erase(0, begin_);
  begin_ = 0;
  return std::nullopt;
}

void EventReader::Clear() {
  unread_.clear();
  data_.clear();
  begin_ = 0;
  has_data_ = false;
}

}  // namespace quintet
