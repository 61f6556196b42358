#include "tools/compression.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace quintet {
namespace {

constexpr absl::string_view kGzipMark = "\x1f\x8b", kZstdMark = "\x28\xb5\x2f\xfd";
constexpr size_t kOutputBytes = size_t{1} << 16;
constexpr int kGzipWindow = 15 + 16;  // 32 KiB window, gzip format
constexpr int kZstdLevel = 3;

class GzipDecompressor : public Decompressor {
 public:
  GzipDecompressor() {
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) throw std::bad_alloc();
  }
  ~GzipDecompressor() override { inflateEnd(&stream_); }
  GzipDecompressor(const GzipDecompressor&) = delete;
  GzipDecompressor& operator=(const GzipDecompressor&) = delete;

  absl::Status Decompress(absl::string_view* input, std::string* output) override {
    if (complete_) {
      if (input->empty()) return absl::OkStatus();
      inflateReset(&stream_);
      complete_ = false;
    }
    const size_t old = output->size();
    output->resize(old + kOutputBytes);
    const size_t given = std::min<size_t>(input->size(), size_t{1} << 30);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input->data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(output->data() + old);
    stream_.avail_out = kOutputBytes;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    output->resize(old + kOutputBytes - stream_.avail_out);
    input->remove_prefix(given - stream_.avail_in);
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    // Z_BUF_ERROR is no error here: zlib needs more input or more space for its output.
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      return absl::DataLossError(
          absl::StrCat("damaged gzip data: ", stream_.msg == nullptr ? "bad header" : stream_.msg));
    }
    complete_ = result == Z_STREAM_END;
    return absl::OkStatus();
  }
  bool complete() const override { return complete_; }

 private:
  z_stream stream_ = {};
  bool complete_ = true;
};

class ZstdDecompressor : public Decompressor {
 public:
  ZstdDecompressor() : stream_(ZSTD_createDCtx()) {
    if (stream_ == nullptr) throw std::bad_alloc();
  }
  ~ZstdDecompressor() override { ZSTD_freeDCtx(stream_); }
  ZstdDecompressor(const ZstdDecompressor&) = delete;
  ZstdDecompressor& operator=(const ZstdDecompressor&) = delete;

  absl::Status Decompress(absl::string_view* input, std::string* output) override {
    if (input->empty() && complete_) return absl::OkStatus();
    const size_t old = output->size();
    output->resize(old + kOutputBytes);
    ZSTD_inBuffer in = {input->data(), input->size(), 0};
    ZSTD_outBuffer out = {output->data() + old, kOutputBytes, 0};
    const size_t result = ZSTD_decompressStream(stream_, &out, &in);
    output->resize(old + out.pos);
    input->remove_prefix(in.pos);
    if (ZSTD_isError(result) != 0) {
      return absl::DataLossError(absl::StrCat("damaged zstd data: ", ZSTD_getErrorName(result)));
    }
    complete_ = result == 0;
    return absl::OkStatus();
  }
  bool complete() const override { return complete_; }

 private:
  ZSTD_DCtx* stream_;
  bool complete_ = true;
};

class GzipCompressor : public Compressor {
 public:
  GzipCompressor() {
    constexpr int kMemoryLevel = 8;  // zlib's default
    if (deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, kMemoryLevel,
                     Z_DEFAULT_STRATEGY) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  ~GzipCompressor() override { deflateEnd(&stream_); }
  GzipCompressor(const GzipCompressor&) = delete;
  GzipCompressor& operator=(const GzipCompressor&) = delete;

  void Compress(absl::string_view data, std::string* output) override {
    if (data.empty()) return;
    begun_ = true;
    for (; !data.empty(); data.remove_prefix(std::min(data.size(), kMostInput))) {
      Run(data.substr(0, kMostInput), Z_NO_FLUSH, output);
    }
  }
  void EndFrame(std::string* output) override {
    if (!begun_) return;
    Run({}, Z_FINISH, output);
    deflateReset(&stream_);
    begun_ = false;
  }

 private:
  static constexpr size_t kMostInput = size_t{1} << 30;

  void Run(absl::string_view data, int flush, std::string* output) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
    stream_.avail_in = static_cast<uInt>(data.size());
    do {
      const size_t old = output->size();
      output->resize(old + kOutputBytes);
      stream_.next_out = reinterpret_cast<Bytef*>(output->data() + old);
      stream_.avail_out = kOutputBytes;
      QT_CHECK(deflate(&stream_, flush) != Z_STREAM_ERROR);
      output->resize(old + kOutputBytes - stream_.avail_out);
    } while (stream_.avail_out == 0);
  }

  z_stream stream_ = {};
  bool begun_ = false;
};

class ZstdCompressor : public Compressor {
 public:
  ZstdCompressor() : stream_(ZSTD_createCCtx()) {
    if (stream_ == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(stream_, ZSTD_c_compressionLevel, kZstdLevel);
    ZSTD_CCtx_setParameter(stream_, ZSTD_c_checksumFlag, 1);
  }
  ~ZstdCompressor() override { ZSTD_freeCCtx(stream_); }
  ZstdCompressor(const ZstdCompressor&) = delete;
  ZstdCompressor& operator=(const ZstdCompressor&) = delete;

  void Compress(absl::string_view data, std::string* output) override {
    if (data.empty()) return;
    begun_ = true;
    ZSTD_inBuffer in = {data.data(), data.size(), 0};
    while (in.pos < in.size) Run(&in, ZSTD_e_continue, output);
  }
  void EndFrame(std::string* output) override {
    if (!begun_) return;
    ZSTD_inBuffer in = {nullptr, 0, 0};
    while (Run(&in, ZSTD_e_end, output) > 0) {
    }
    begun_ = false;
  }

 private:
  // Calls ZSTD_compressStream2 once. Returns the number of compressed bytes that remain in zstd's
  // internal buffers.
  size_t Run(ZSTD_inBuffer* in, ZSTD_EndDirective directive, std::string* output) {
    const size_t old = output->size();
    output->resize(old + kOutputBytes);
    ZSTD_outBuffer out = {output->data() + old, kOutputBytes, 0};
    const size_t left = ZSTD_compressStream2(stream_, &out, in, directive);
    output->resize(old + out.pos);
    if (ZSTD_isError(left) != 0) throw std::bad_alloc();  // no other error is possible here
    return left;
  }

  ZSTD_CCtx* stream_;
  bool begun_ = false;
};

}  // namespace

Compression CompressionOfName(absl::string_view name) {
  if (absl::EndsWith(name, ".gz")) return Compression::kGzip;
  if (absl::EndsWith(name, ".zst")) return Compression::kZstd;
  return Compression::kNone;
}

Compression CompressionOfData(absl::string_view data) {
  if (absl::StartsWith(data, kGzipMark)) return Compression::kGzip;
  if (absl::StartsWith(data, kZstdMark)) return Compression::kZstd;
  return Compression::kNone;
}

bool IsCompressionPrefix(absl::string_view data) {
  const auto could_become = [&](absl::string_view mark) {
    return data.size() < mark.size() && absl::StartsWith(mark, data);
  };
  return could_become(kGzipMark) || could_become(kZstdMark);
}

std::unique_ptr<Decompressor> Decompressor::Create(Compression compression) {
  QT_CHECK(compression != Compression::kNone);
  if (compression == Compression::kGzip) return std::make_unique<GzipDecompressor>();
  return std::make_unique<ZstdDecompressor>();
}

std::unique_ptr<Compressor> Compressor::Create(Compression compression) {
  QT_CHECK(compression != Compression::kNone);
  if (compression == Compression::kGzip) return std::make_unique<GzipCompressor>();
  return std::make_unique<ZstdCompressor>();
}

}  // namespace quintet
