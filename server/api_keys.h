// API keys: a file of SHA-256 digests (64 hexadecimal digits a line, '#' comments), mode 0600.
// Clients send the key itself as `authorization: Bearer KEY`; the server keeps digests only and
// compares in constant time. Thread safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace quintet {

class ApiKeys {
 public:
  // Reads the file, or reads it again; on an error the keys of before stay. INVALID_ARGUMENT names
  // line and what is wrong with it.
  absl::Status Load(const std::string& path);
  // Whether the value of an authorization header holds a key.
  bool Allows(absl::string_view authorization) const;

 private:
  using Digest = std::array<char, 64>;
  mutable std::mutex mutex_;
  std::vector<Digest> digests_;
};

}  // namespace quintet
