// API keys from a file of mode 0600. Each line holds the SHA-256 digest of a key (64 hexadecimal
// digits), optionally followed by white space and the highest priority that calls with this key may
// have: low, normal or high. A line without a priority means high. Lines that begin with '#' are
// comments. Clients send the key itself as `authorization: Bearer KEY`. The server stores only
// digests and compares them in constant time. Thread-safe.
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
  // Reads or re-reads the file. On an error the previous keys stay in use, and the status is
  // INVALID_ARGUMENT with the line number and the reason.
  absl::Status Load(const std::string& path);
  // `authorization` is the value of an authorization header. Returns the highest priority that its
  // key allows, or nullopt if the header holds no known key.
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

// Returns PERMISSION_DENIED if the priority `requested` by a call is higher than `highest`, the
// highest priority that its API key allows.
absl::Status CheckPriority(Priority requested, Priority highest);

}  // namespace quintet
