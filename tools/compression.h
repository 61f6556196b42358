// Streaming compression and decompression of job input and output: gzip (zlib) and zstd (libzstd).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

enum class Compression : uint8_t { kNone, kGzip, kZstd };

// By the suffix of a file name: .gz or .zst.
Compression CompressionOfName(absl::string_view name);
// By the first bytes of the data; 4 bytes are enough.
Compression CompressionOfData(absl::string_view data);
// Whether more bytes after `data` could make it compressed data: it is shorter than the mark of a
// format and equal to the beginning of that mark.
bool IsCompressionPrefix(absl::string_view data);

// Decompresses a concatenation of gzip members or zstd frames. Not thread safe.
class Decompressor {
 public:
  // `compression` is not kNone.
  static std::unique_ptr<Decompressor> Create(Compression compression);
  virtual ~Decompressor() = default;

  // Consumes bytes from the front of *input and appends up to 64 KiB of output; call it until
  // neither *input nor *output changes. DATA_LOSS: the data is damaged.
  virtual absl::Status Decompress(absl::string_view* input, std::string* output) = 0;
  // Whether the consumed input ends with a complete member or frame.
  virtual bool complete() const = 0;
};

// Compresses into gzip members or zstd frames. Not thread safe.
class Compressor {
 public:
  // `compression` is not kNone.
  static std::unique_ptr<Compressor> Create(Compression compression);
  virtual ~Compressor() = default;

  // Appends compressed bytes of `data` to *output, possibly later than in this call.
  virtual void Compress(absl::string_view data, std::string* output) = 0;
  // Ends the current member or frame, if it has any data. The next Compress begins another one.
  virtual void EndFrame(std::string* output) = 0;
};

}  // namespace quintet
