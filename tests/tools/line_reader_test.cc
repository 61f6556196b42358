#include "tools/line_reader.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

class Pipe {
 public:
  Pipe() { REQUIRE(pipe(ends_) == 0); }
  ~Pipe() {
    Close();
    close(ends_[0]);
  }
  int reader() const { return ends_[0]; }
  void Write(const std::string& text) {
    REQUIRE(write(ends_[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  void Close() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }

 private:
  int ends_[2];
};

using Outcome = LineReader::Outcome;

TEST_CASE("reads lines one by one, including an unterminated last line") {
  Pipe pipe;
  pipe.Write("a\r\n\nbc\nlast");
  pipe.Close();
  LineReader reader(pipe.reader(), 100);
  std::string line;
  for (const std::string expected : {"a", "", "bc", "last"}) {
    REQUIRE(reader.Next(-1, &line) == Outcome::kLine);
    CHECK(line == expected);
  }
  CHECK(reader.Next(-1, &line) == Outcome::kEnd);
  CHECK(reader.bytes_read() == 11);
  CHECK(reader.total_bytes() == -1);
}

TEST_CASE("an incomplete line returns kWait without blocking") {
  Pipe pipe;
  LineReader reader(pipe.reader(), 100);
  std::string line;
  CHECK(reader.Next(0, &line) == Outcome::kWait);
  pipe.Write("hal");
  CHECK(reader.Next(0, &line) == Outcome::kWait);
  pipe.Write("f\nx");
  REQUIRE(reader.Next(0, &line) == Outcome::kLine);
  CHECK(line == "half");
  CHECK(reader.Next(0, &line) == Outcome::kWait);
}

TEST_CASE("a too long line is skipped and the next line is complete") {
  Pipe pipe;
  pipe.Write(std::string(11, 'x') + "\n" + std::string(10, 'y') + "\n" + std::string(500, 'z'));
  LineReader reader(pipe.reader(), 10);
  std::string line;
  CHECK(reader.Next(0, &line) == Outcome::kTooLong);
  REQUIRE(reader.Next(0, &line) == Outcome::kLine);
  CHECK(line == std::string(10, 'y'));
  CHECK(reader.Next(0, &line) == Outcome::kWait);  // its end is still to come
  pipe.Write("zz\nok\n");
  CHECK(reader.Next(0, &line) == Outcome::kTooLong);
  REQUIRE(reader.Next(0, &line) == Outcome::kLine);
  CHECK(line == "ok");
  pipe.Write(std::string(50, 'q'));
  pipe.Close();
  CHECK(reader.Next(0, &line) == Outcome::kTooLong);
  CHECK(reader.Next(0, &line) == Outcome::kEnd);
}

}  // namespace
}  // namespace quintet
