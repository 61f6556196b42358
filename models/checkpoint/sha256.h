// SHA-256 (FIPS 180-4) of a stream of bytes. It identifies a model's weights and the files that
// `quintet convert` writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace quintet {

class Sha256 {
 public:
  void Update(const void* data, size_t bytes);
  // Returns the hash as 64 lower-case hexadecimal digits. Call once, after the last Update.
  std::string Finish();

 private:
  void Block(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  uint64_t total_bytes_ = 0;
};

// Updates `hash` with all bytes of the file.
absl::Status HashFile(const std::string& path, Sha256* hash);

}  // namespace quintet
