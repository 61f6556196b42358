// Streaming compression and decompression of the input and output of commands that process lines:
// gzip (zlib) and zstd (libzstd).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

enum class Compression : uint8_t { kNone, kGzip, kZstd };

// Returns the compression that a file name implies: .gz, .zst or none.
Compression CompressionOfName(absl::string_view name);
// Returns the compression of `data`, recognised by its first bytes; 4 bytes are enough.
Compression CompressionOfData(absl::string_view data);
// Whether more bytes are needed to recognise the compression: `data` is shorter than the magic
// bytes of a compressed format and equal to their beginning.
bool IsCompressionPrefix(absl::string_view data);

// Decompresses a concatenation of gzip members or zstd frames. Not thread safe.
class Decompressor {
 public:
  // `compression` is not kNone.
  static std::unique_ptr<Decompressor> Create(Compression compression);
  virtual ~Decompressor() = default;

  // Removes bytes from the front of *input and appends up to 64 KiB of decompressed bytes to
  // *output. Call it until neither *input nor *output changes. DATA_LOSS: the data is damaged.
  virtual absl::Status Decompress(absl::string_view* input, std::string* output) = 0;
  // Whether the input consumed so far ends with a complete gzip member or zstd frame.
  virtual bool complete() const = 0;
};

// Compresses a stream of bytes into gzip members or zstd frames. Not thread safe.
class Compressor {
 public:
  // `compression` is not kNone.
  static std::unique_ptr<Compressor> Create(Compression compression);
  virtual ~Compressor() = default;

  // Compresses `data`. Compressed bytes are appended to *output, some of them only in later calls.
  virtual void Compress(absl::string_view data, std::string* output) = 0;
  // Ends the current gzip member or zstd frame, if it contains data; its remaining bytes are
  // appended to *output. The next Compress begins a new one.
  virtual void EndFrame(std::string* output) = 0;
};

}  // namespace quintet
