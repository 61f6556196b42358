// Time limits within which a client must send its messages and read the responses. The server ends
// an RPC whose client exceeds one of them.
#pragma once

#include <cstdint>

namespace quintet {

struct ClientTimeouts {
  // Time from the start of the RPC to its first message.
  int64_t first_message_us = 10'000'000;
  // Time until the next message of a stream, while none of the stream's requests is in progress.
  int64_t next_message_us = 60'000'000;
  // Time for the client to read one written message or the final status.
  int64_t write_us = 30'000'000;
};

}  // namespace quintet
