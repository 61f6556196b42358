// Time limits within which a client must send its messages and read the responses. The server ends
// an RPC whose client exceeds one of them.
#pragma once

#include <cstdint>

namespace quintet {

struct ClientTimeouts {
  // Time from the start of the RPC until the client's first message has arrived.
  int64_t first_message_us = 10'000'000;
  // Time a stream may be idle: none of its requests is in progress, and the client sends no further
  // message. Measured from the last message in either direction.
  int64_t next_message_us = 60'000'000;
  // Time for the client to read one written message or the final status.
  int64_t write_us = 30'000'000;
};

}  // namespace quintet
