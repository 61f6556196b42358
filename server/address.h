// Addresses to listen on: HOST:PORT, where an IPv6 host has brackets.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace quintet {

struct Address {
  std::string host;  // not empty; of IPv6 without the brackets
  int port = 0;      // 0 to 65535
};

// INVALID_ARGUMENT: `text` has no host, or no such port. `flag` is where it comes from.
absl::StatusOr<Address> ReadAddress(const std::string& flag, const std::string& text);

// "FLAG: cannot listen on TEXT: WHY".
absl::Status CannotListen(const std::string& flag, const std::string& text, const std::string& why);

// Whether only this machine reaches the host. False for names but localhost, wherever they lead.
bool IsLoopback(const Address& address);

}  // namespace quintet
