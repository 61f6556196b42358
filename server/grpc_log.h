// Redirects gRPC's log messages to the default logger of spdlog. They may quote bytes that clients
// sent, and every rejected header causes a message. Therefore only the source location is logged,
// at most once per kGrpcLogInterval and location, with the number of suppressed messages.
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

// Rate limiter for log messages, per source location. Thread-safe.
class LocationLimiter {
 public:
  // Decides whether the message from `file`:`line` is logged. If it is, returns the number of
  // messages from this location that were suppressed since the last logged one. Returns nullopt if
  // a message from this location was logged less than kGrpcLogInterval ago.
  std::optional<int64_t> Admit(absl::string_view file, int line, int64_t now_us);

 private:
  static constexpr size_t kMaxLocations = 256;  // all further locations share one entry
  struct Location {
    std::optional<int64_t> admitted_us;
    int64_t refused = 0;
  };

  std::mutex mutex_;
  std::map<std::pair<std::string, int>, Location> locations_;
};

// Starts to redirect gRPC's log messages. Must be called once, before the first use of gRPC.
void RouteGrpcLog();

}  // namespace quintet
