#include "tools/line_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"

namespace quintet {
namespace {

using Catch::Matchers::ContainsSubstring;

class OutputFile {
 public:
  explicit OutputFile(const std::string& suffix)
      : path_(std::filesystem::temp_directory_path() /
              ("line_output_" + std::to_string(getpid()) + suffix)) {
    std::filesystem::remove(path_);
  }
  ~OutputFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }
  void Set(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string Text() const {
    const std::string bytes = Bytes();
    const Compression compression = CompressionOfData(bytes);
    if (compression == Compression::kNone) return bytes;
    const auto decompressor = Decompressor::Create(compression);
    std::string text;
    absl::string_view input = bytes;
    for (size_t had = 1; had != text.size() || !input.empty();) {
      had = text.size();
      REQUIRE(decompressor->Decompress(&input, &text).ok());
    }
    REQUIRE(decompressor->complete());
    return text;
  }

 private:
  std::filesystem::path path_;
};

std::unique_ptr<LineOutput> Open(const std::string& path, bool resume,
                                 const RecordFormat& format = {}) {
  absl::StatusOr<std::unique_ptr<LineOutput>> output = LineOutput::Open(path, resume, format);
  INFO(output.status());
  REQUIRE(output.ok());
  return *std::move(output);
}

std::string OpenError(const std::string& path, bool resume, const RecordFormat& format = {}) {
  const auto output = LineOutput::Open(path, resume, format);
  REQUIRE(absl::IsInvalidArgument(output.status()));
  return std::string(output.status().message());
}

TEST_CASE("an existing file is overwritten") {
  const OutputFile file(".txt");
  file.Set("old\nlines\n");
  {
    const auto output = Open(file.path(), false);
    CHECK(output->kept_records() == 0);
    CHECK(output->Write("new\n").ok());
    CHECK(output->Finish().ok());
  }
  CHECK(file.Bytes() == "new\n");
}

TEST_CASE("resume keeps whole lines and cuts off the rest") {
  const OutputFile file(".txt");
  const std::string all = "one\n\nthree\nfour\n";
  for (size_t size = 0; size <= all.size(); ++size) {
    file.Set(all.substr(0, size));
    {
      const auto output = Open(file.path(), true);
      const auto kept = static_cast<size_t>(output->kept_records());
      size_t begin = 0;
      for (size_t i = 0; i < kept; ++i) begin = all.find('\n', begin) + 1;
      CHECK(begin <= size);
      CHECK(all.find('\n', begin) >= size - (begin == size ? 0 : 1));
      CHECK(output->Write(all.substr(begin)).ok());
      CHECK(output->Finish().ok());
    }
    CHECK(file.Bytes() == all);
  }
}

TEST_CASE("a compressed file can be continued wherever it was cut") {
  for (const std::string suffix : {".gz", ".zst"}) {
    const OutputFile file(suffix);
    // The output is a sequence of frames (gzip members or zstd frames). A frame ends after 4 MiB of
    // text, so this text of 9 MiB gives three frames.
    std::string text;
    for (int i = 0; text.size() < (size_t{9} << 20); ++i) text += std::to_string(i * 7919) + "\n";
    {
      const auto output = Open(file.path(), false);
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.size(), text.find('\n', at + (1 << 18)));
        CHECK(output->Write(text.substr(at, end + 1 - at)).ok());
        at = end + 1;
      }
      CHECK(output->Finish().ok());
    }
    const std::string whole = file.Bytes();
    REQUIRE(file.Text() == text);
    int64_t most = 0;
    for (size_t size = 0; size < whole.size(); size += whole.size() / 7) {
      file.Set(whole.substr(0, size));
      {
        const auto output = Open(file.path(), true);
        most = std::max(most, output->kept_records());
        size_t begin = 0;
        for (int64_t i = 0; i < output->kept_records(); ++i) begin = text.find('\n', begin) + 1;
        CHECK(output->Write(text.substr(begin)).ok());
        CHECK(output->Finish().ok());
      }
      CHECK(file.Text() == text);
    }
    CHECK(most > 0);  // whole frames were kept
  }
}

TEST_CASE("binary records keep their size, and the header gets their number") {
  const OutputFile file(".npy");
  const RecordFormat format = {
      .record_bytes = 3, .header = [](int64_t records) { return absl::StrCat("<", records, ">"); }};
  {
    const auto output = Open(file.path(), false, format);
    CHECK(file.Bytes() == "<0>");
    CHECK(output->Write("abcdefgh").ok());  // the last record is cut off
  }
  {
    const auto output = Open(file.path(), true, format);
    CHECK(output->kept_records() == 2);
    CHECK(output->Write("ijk").ok());
    CHECK(output->Finish().ok());
  }
  CHECK(file.Bytes() == "<3>abcdefijk");
}

TEST_CASE("outputs that cannot be used are refused with the flag and the reason") {
  const OutputFile file(".txt"), compressed(".gz");
  CHECK_THAT(OpenError("", true), ContainsSubstring("--resume: needs --output-file"));
  CHECK_THAT(OpenError("/nonexistent/out.txt", false),
             ContainsSubstring("--output-file: opening /nonexistent/out.txt: No such file"));
  CHECK_THAT(OpenError("/dev/null", true), ContainsSubstring("/dev/null is not a regular file"));
  CHECK_THAT(OpenError(compressed.path(), false, {.record_bytes = 4}),
             ContainsSubstring("which binary output cannot be"));
  CHECK(!std::filesystem::exists(compressed.path()));  // refused before it is created
  const auto output = Open(file.path(), false);
  CHECK_THAT(OpenError(file.path(), true), ContainsSubstring("is in use by another process"));
}

// Redirects the standard output to `path`, opened with `flags`, and opens it as a LineOutput of
// records with a header.
absl::Status OpenStandardOutput(const std::string& path, int flags) {
  const int saved = dup(STDOUT_FILENO), file = open(path.c_str(), flags | O_CREAT, 0666);
  REQUIRE(saved >= 0);
  REQUIRE(dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
  const absl::Status status =
      LineOutput::Open("", false, {.record_bytes = 1, .header = [](int64_t) { return "<>"; }})
          .status();
  dup2(saved, STDOUT_FILENO);
  close(file);
  close(saved);
  return status;
}

TEST_CASE("a header is written to a standard output that is an empty file and does not append") {
  const OutputFile file(".npy");
  const absl::Status appended = OpenStandardOutput(file.path(), O_WRONLY | O_APPEND);
  CHECK(absl::IsInvalidArgument(appended));
  CHECK_THAT(std::string(appended.message()),
             ContainsSubstring("--output: standard output appends (>>)") &&
                 ContainsSubstring("redirect with > or set --output-file"));
  CHECK(file.Bytes().empty());
  file.Set("old");
  CHECK(absl::IsInvalidArgument(OpenStandardOutput(file.path(), O_WRONLY)));
  CHECK(absl::IsInvalidArgument(OpenStandardOutput(file.path(), O_WRONLY | O_APPEND)));
  CHECK(file.Bytes() == "old");
  CHECK(OpenStandardOutput(file.path(), O_WRONLY | O_TRUNC).ok());
  CHECK(file.Bytes() == "<>");
}

}  // namespace
}  // namespace quintet
