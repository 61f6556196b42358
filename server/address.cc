#include "server/address.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quintet {

absl::StatusOr<Address> ParseAddress(const std::string& flag, const std::string& text) {
  const size_t colon = text.rfind(':');
  Address address;
  std::string port;
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (address.host.size() >= 2 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  const bool digits = std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  if (address.host.empty() || !digits || !absl::SimpleAtoi(port, &address.port) ||
      address.port > 65535) {
    return ListenError(flag, text, "expected HOST:PORT, a port from 0 to 65535");
  }
  return address;
}

absl::Status ListenError(const std::string& flag, const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot listen on ", text, ": ", why));
}

bool IsLoopback(const Address& address) {
  in_addr four{};
  if (inet_pton(AF_INET, address.host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return address.host == "localhost" || address.host == "::1";
}

}  // namespace quintet
