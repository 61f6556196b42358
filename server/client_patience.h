// How long a client may take for its part of an RPC.
#pragma once

#include <cstdint>

namespace quintet {

struct ClientPatience {
  int64_t first_message_us = 10'000'000;
  int64_t next_message_us = 60'000'000;  // while none of its requests is in progress
  int64_t write_us = 30'000'000;         // to take a message or the end
};

}  // namespace quintet
