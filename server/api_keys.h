// API keys: a file of mode 0600 with a key per line, as its SHA-256 digest (64 hexadecimal digits)
// and, after white space, the highest priority of its calls: low, normal or high (default). Lines
// that begin with '#' are comments. Clients send the key itself as `authorization: Bearer KEY`; the
// server keeps digests only and compares in constant time. Thread safe.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/request.h"

namespace quintet {

class ApiKeys {
 public:
  // Reads the file, or reads it again; on an error the keys of before stay. INVALID_ARGUMENT names
  // line and what is wrong with it.
  absl::Status Load(const std::string& path);
  // The highest priority of the key in the value of an authorization header; unset: it holds none
  // of the keys.
  std::optional<Priority> MaxPriority(absl::string_view authorization) const;

 private:
  using Digest = std::array<char, 64>;  // hexadecimal, lower case
  struct Key {
    Digest digest;
    Priority max_priority = Priority::kHigh;
  };
  static absl::StatusOr<Key> ParseLine(absl::string_view line);

  mutable std::mutex mutex_;
  std::vector<Key> keys_;
};

// PERMISSION_DENIED if a call of priority `requested` is above its key's `highest`.
absl::Status CheckPriority(Priority requested, Priority highest);

}  // namespace quintet
