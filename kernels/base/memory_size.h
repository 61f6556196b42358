// Sizes of memory in messages.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace quintet {

// Returns "49 MiB", rounded up, or "4096 bytes" for less than one MiB.
inline std::string MemorySize(int64_t bytes) {
  constexpr int64_t kMib = int64_t{1} << 20;
  if (bytes < kMib) return absl::StrCat(bytes, " bytes");
  return absl::StrCat(bytes / kMib + (bytes % kMib == 0 ? 0 : 1), " MiB");
}

}  // namespace quintet
