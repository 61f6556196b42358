// Listening addresses of the form HOST:PORT. An IPv6 host is written in brackets: [::1]:50051.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace quintet {

struct Address {
  std::string host;  // not empty; an IPv6 address has no brackets here
  int port = 0;      // 0 to 65535
};

// Parses `text`. Returns INVALID_ARGUMENT if the host is empty or the port is not in [0, 65535].
// `flag` is the command-line flag that error messages name.
absl::StatusOr<Address> ParseAddress(const std::string& flag, const std::string& text);

// Returns INVALID_ARGUMENT with the message "FLAG: cannot listen on TEXT: WHY".
absl::Status ListenError(const std::string& flag, const std::string& text, const std::string& why);

// Returns true for 127.0.0.0/8, ::1 and the name "localhost". Every other name counts as not
// loopback, even if it resolves to a loopback address.
bool IsLoopback(const Address& address);

}  // namespace quintet
