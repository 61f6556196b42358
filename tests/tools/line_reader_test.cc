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

using ReadOutcome = LineReader::Outcome;

TEST_CASE("reads lines one by one, including an unterminated last line") {
  Pipe pipe;
  pipe.Write("a\r\n\nbc\nlast");
  pipe.Close();
  LineReader reader(pipe.reader(), 100);
  std::string line;
  for (const std::string expected : {"a", "", "bc", "last"}) {
    REQUIRE(reader.Next(-1, &line) == ReadOutcome::kLine);
    CHECK(line == expected);
  }
  CHECK(reader.Next(-1, &line) == ReadOutcome::kEnd);
  CHECK(reader.bytes_read() == 11);
  CHECK(reader.total_bytes() == -1);
}

TEST_CASE("an incomplete line returns kWait without blocking") {
  Pipe pipe;
  LineReader reader(pipe.reader(), 100);
  std::string line;
  CHECK(reader.Next(0, &line) == ReadOutcome::kWait);
  pipe.Write("hal");
  CHECK(reader.Next(0, &line) == ReadOutcome::kWait);
  pipe.Write("f\nx");
  REQUIRE(reader.Next(0, &line) == ReadOutcome::kLine);
  CHECK(line == "half");
  CHECK(reader.Next(0, &line) == ReadOutcome::kWait);
}

TEST_CASE("a too long line is skipped and the next line is complete") {
  Pipe pipe;
  pipe.Write(std::string(11, 'x') + "\n" + std::string(10, 'y') + "\n" + std::string(500, 'z'));
  LineReader reader(pipe.reader(), 10);
  std::string line;
  CHECK(reader.Next(0, &line) == ReadOutcome::kTooLong);
  REQUIRE(reader.Next(0, &line) == ReadOutcome::kLine);
  CHECK(line == std::string(10, 'y'));
  CHECK(reader.Next(0, &line) == ReadOutcome::kWait);  // the end of the line has not arrived
  pipe.Write("zz\nok\n");
  CHECK(reader.Next(0, &line) == ReadOutcome::kTooLong);
  REQUIRE(reader.Next(0, &line) == ReadOutcome::kLine);
  CHECK(line == "ok");
  pipe.Write(std::string(50, 'q'));
  pipe.Close();
  CHECK(reader.Next(0, &line) == ReadOutcome::kTooLong);
  CHECK(reader.Next(0, &line) == ReadOutcome::kEnd);
}

std::string Gzip(const std::string& text) {
  std::string data;
  const auto compressor = Compressor::Create(Compression::kGzip);
  compressor->Compress(text, &data);
  compressor->EndFrame(&data);
  return data;
}

TEST_CASE("compressed lines arrive as soon as their bytes do") {
  Pipe pipe;
  LineReader reader(pipe.reader(), 100);
  const std::string data = Gzip("one\ntwo\n") + Gzip("three\nfour");
  std::vector<std::string> lines;
  std::string line;
  for (const char byte : data) {
    pipe.Write(std::string(1, byte));
    while (reader.Next(0, &line) == ReadOutcome::kLine) lines.push_back(line);
  }
  CHECK(lines == std::vector<std::string>{"one", "two", "three"});
  CHECK(reader.compressed());
  pipe.Close();
  REQUIRE(reader.Next(-1, &line) == ReadOutcome::kLine);
  CHECK(line == "four");
  CHECK(reader.Next(-1, &line) == ReadOutcome::kEnd);
  CHECK(reader.bytes_read() == static_cast<int64_t>(data.size()));
}

TEST_CASE("text that begins like a compressed format is text") {
  Pipe pipe;
  LineReader reader(pipe.reader(), 100);
  std::string line;
  pipe.Write("(");
  CHECK(reader.Next(0, &line) == ReadOutcome::kWait);
  pipe.Write("a)\n");
  REQUIRE(reader.Next(0, &line) == ReadOutcome::kLine);
  CHECK(line == "(a)");
  CHECK_FALSE(reader.compressed());
}

TEST_CASE("damaged compressed input is an error after the lines before the damage") {
  for (const bool cut : {false, true}) {
    std::string data = Gzip("one\n");
    data += cut ? Gzip("two\n").substr(0, 12) : "no gzip member";
    Pipe pipe;
    pipe.Write(data);
    pipe.Close();
    LineReader reader(pipe.reader(), 100);
    std::string line;
    REQUIRE(reader.Next(-1, &line) == ReadOutcome::kLine);
    CHECK(reader.Next(-1, &line) == ReadOutcome::kError);
    CHECK(absl::IsDataLoss(reader.error()));
  }
}

TEST_CASE("a compressed line of 200 MB is skipped in bounded memory") {
  Pipe pipe;
  std::string data;
  const auto compressor = Compressor::Create(Compression::kZstd);
  const std::string zeros(1 << 20, '0');
  for (int i = 0; i < 200; ++i) compressor->Compress(zeros, &data);
  compressor->Compress("\nnext\n", &data);
  compressor->EndFrame(&data);
  REQUIRE(data.size() < 60000);  // fits into the pipe
  pipe.Write(data);
  pipe.Close();
  LineReader reader(pipe.reader(), 1000);
  std::string line;
  CHECK(reader.Next(-1, &line) == ReadOutcome::kTooLong);
  REQUIRE(reader.Next(-1, &line) == ReadOutcome::kLine);
  CHECK(line == "next");
}

}  // namespace
}  // namespace quintet
