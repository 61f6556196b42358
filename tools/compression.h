// Streaming compression and decompression with gzip (zlib) and zstd (libzstd), for the input and
// output of commands that process lines.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

enum class Compression : uint8_t { kNone, kGzip, kZstd };

// Returns the compression that the end of a file name stands for: .gz, .zst, or else kNone.
Compression CompressionOfName(absl::string_view name);
// Recognises the compression of `data` by its first 4 bytes. Returns kNone if they are not the
// magic bytes of gzip or zstd.
Compression CompressionOfData(absl::string_view data);
// Returns true if more bytes are needed to recognise the compression: `data` is shorter than the
// magic bytes of a compressed format and equals their beginning.
bool IsCompressionPrefix(absl::string_view data);

// Decompresses a concatenation of gzip members or zstd frames. Not thread safe.
class Decompressor {
 public:
  // `compression` must not be kNone.
  static std::unique_ptr<Decompressor> Create(Compression compression);
  virtual ~Decompressor() = default;

  // Removes the bytes that it consumes from the front of *input and appends up to 64 KiB of
  // decompressed bytes to *output. Call it again until neither *input nor *output changes. Returns
  // DATA_LOSS if the compressed data is damaged.
  virtual absl::Status Decompress(absl::string_view* input, std::string* output) = 0;
  // Returns true if the input consumed so far ends at the end of a gzip member or zstd frame.
  virtual bool complete() const = 0;
};

// Compresses a stream of bytes into gzip members or zstd frames. Not thread safe.
class Compressor {
 public:
  // `compression` must not be kNone.
  static std::unique_ptr<Compressor> Create(Compression compression);
  virtual ~Compressor() = default;

  // Compresses `data` and appends compressed bytes to *output. Some bytes of `data` may appear
  // there only after later calls.
  virtual void Compress(absl::string_view data, std::string* output) = 0;
  // Ends the current gzip member or zstd frame, if it contains any data, and appends its remaining
  // bytes to *output. The next Compress begins a new member or frame.
  virtual void EndFrame(std::string* output) = 0;
};

}  // namespace quintet
