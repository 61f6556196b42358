#include "tools/load/event_reader.h"

#include <string>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

std::vector<std::string> Read(const std::string& stream, size_t piece_bytes) {
  EventReader reader;
  std::vector<std::string> events;
  for (size_t at = 0; at < stream.size(); at += piece_bytes) {
    reader.Append(absl::string_view(stream).substr(at, piece_bytes));
    while (const auto data = reader.Next()) events.emplace_back(*data);
  }
  return events;
}

TEST_CASE("events: data is read whatever the pieces in which it arrives") {
  const std::string stream =
      "data: {\"a\":1}\n\n"
      ":\n\n"
      "event: x\nid: 3\ndata:no space\n\n"
      "data: first\r\ndata: second\r\n\r\n"
      "data:\n\n"
      "data: [DONE]\n\n"
      "data: incomplete\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "no space", "first\nsecond", "",
                                             "[DONE]"};
  for (size_t piece = 1; piece <= stream.size(); ++piece) CHECK(Read(stream, piece) == expected);
}

TEST_CASE("events: bytes of incomplete events are counted, and Clear forgets them") {
  EventReader reader;
  reader.Append("data: 12345\nda");
  CHECK_FALSE(reader.Next().has_value());
  CHECK(reader.unread_bytes() == 7);
  reader.Clear();
  CHECK(reader.unread_bytes() == 0);
  reader.Append("data: x\n\n");
  CHECK(reader.Next() == "x");
  CHECK_FALSE(reader.Next().has_value());
}

}  // namespace
}  // namespace quintet
