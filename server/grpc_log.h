// gRPC's own messages in our log: spdlog's default logger. gRPC puts what clients send into its
// messages, and writes one each time it dislikes a header. So only the source location is logged,
// at most once in kGrpcLogInterval for each, with the number of messages left out since.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace quintet {

inline constexpr std::chrono::seconds kGrpcLogInterval{10};

// Decides which messages of a source location are logged. Thread safe.
class LocationLimiter {
 public:
  // The number of messages from there that were refused since the last that was admitted; nullopt:
  // refused, since one was admitted less than kGrpcLogInterval ago.
  std::optional<int64_t> Admit(absl::string_view file, int line, int64_t now_us);

 private:
  static constexpr size_t kMaxLocations = 256;  // all further ones count as one
  struct Location {
    std::optional<int64_t> admitted_us;
    int64_t refused = 0;
  };

  std::mutex mutex_;
  std::map<std::pair<std::string, int>, Location> locations_;
};

// Once, before the first use of gRPC.
void RouteGrpcLog();

}  // namespace quintet
