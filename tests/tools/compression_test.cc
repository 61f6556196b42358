#include "tools/compression.h"

#include <random>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr Compression kFormats[] = {Compression::kGzip, Compression::kZstd};

// Passes `data` to a decompressor in pieces of `step` bytes. Returns the decompressed text.
std::string Decompressed(Compression format, const std::string& data, size_t step,
                         bool* complete = nullptr) {
  const auto decompressor = Decompressor::Create(format);
  std::string text;
  for (size_t at = 0; at < data.size(); at += step) {
    absl::string_view piece = absl::string_view(data).substr(at, step);
    while (true) {
      const size_t given = piece.size(), had = text.size();
      REQUIRE(decompressor->Decompress(&piece, &text).ok());
      REQUIRE(text.size() - had <= (size_t{1} << 16));
      if (piece.size() == given && text.size() == had) break;
    }
    REQUIRE(piece.empty());
  }
  if (complete != nullptr) *complete = decompressor->complete();
  return text;
}

std::string Text(size_t size) {
  std::mt19937 random(static_cast<uint32_t>(size));
  std::string text;
  while (text.size() < size) text += std::to_string(random() % 1000) + (random() % 9 ? " " : "\n");
  text.resize(size);
  return text;
}

TEST_CASE("compressed data decompresses to the same bytes, whatever the pieces") {
  for (const Compression format : kFormats) {
    for (const size_t size : {1, 2, 1000, 65536, 65537, 1000000}) {
      const auto compressor = Compressor::Create(format);
      const std::string text = Text(size);
      std::string data;
      compressor->Compress(absl::string_view(text).substr(0, size / 3), &data);
      compressor->Compress(absl::string_view(text).substr(size / 3), &data);
      compressor->EndFrame(&data);
      CHECK(CompressionOfData(data) == format);
      for (const size_t step : {size_t{1}, size_t{7}, data.size()}) {
        if (step == 1 && size > 100000) continue;
        bool complete = false;
        CHECK(Decompressed(format, data, step, &complete) == text);
        CHECK(complete);
      }
    }
  }
}

TEST_CASE("frames follow each other, and an empty frame takes no bytes") {
  for (const Compression format : kFormats) {
    const auto compressor = Compressor::Create(format);
    std::string data;
    compressor->EndFrame(&data);
    CHECK(data.empty());
    compressor->Compress("first\n", &data);
    compressor->EndFrame(&data);
    const size_t first = data.size();
    compressor->Compress("second\n", &data);
    compressor->EndFrame(&data);
    compressor->EndFrame(&data);
    CHECK(Decompressed(format, data, 3) == "first\nsecond\n");
    CHECK(Decompressed(format, data.substr(0, first), 3) == "first\n");
  }
}

TEST_CASE("data that ends early is not complete, and changed data is damaged or differs") {
  for (const Compression format : kFormats) {
    const std::string text = Text(5000);
    const auto compressor = Compressor::Create(format);
    std::string data;
    compressor->Compress(text, &data);
    compressor->EndFrame(&data);
    for (const size_t size : {size_t{1}, size_t{10}, data.size() / 2, data.size() - 1}) {
      bool complete = true;
      const std::string begin = Decompressed(format, data.substr(0, size), size, &complete);
      CHECK_FALSE(complete);
      CHECK(text.compare(0, begin.size(), begin) == 0);
    }
    data[data.size() / 2] ^= 0x55;
    absl::string_view input = data;
    const auto decompressor = Decompressor::Create(format);
    std::string changed;
    absl::Status status;
    for (size_t left = input.size() + 1; status.ok() && left != input.size();) {
      left = input.size();
      status = decompressor->Decompress(&input, &changed);
    }
    CHECK(absl::IsDataLoss(status));
  }
}

TEST_CASE("formats are recognised by the first bytes and by the suffix") {
  CHECK(CompressionOfName("a.gz") == Compression::kGzip);
  CHECK(CompressionOfName("a.txt.zst") == Compression::kZstd);
  CHECK(CompressionOfName("gz") == Compression::kNone);
  CHECK(CompressionOfData("(text") == Compression::kNone);
  CHECK(CompressionOfData("") == Compression::kNone);
  CHECK(IsCompressionPrefix(""));
  CHECK(IsCompressionPrefix("("));
  CHECK(IsCompressionPrefix("\x1f"));
  CHECK_FALSE(IsCompressionPrefix("(a"));
  CHECK_FALSE(IsCompressionPrefix("\x1f\x8b"));
}

}  // namespace
}  // namespace quintet
