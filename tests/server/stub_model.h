// A model that does nothing, as slowly as a test wants: it takes the shipped model's place in a
// server, with its tokenizer, and always goes on with the same token.
#pragma once

#include <atomic>
#include <memory>

#include "server/model_host.h"

namespace quintet {

struct StubControl {
  std::atomic<int64_t> step_us{0};    // a decoder step takes so long
  std::atomic<int64_t> stall_at{-1};  // ... and this one forever
  std::atomic<int64_t> load_us{0};    // and loading
  std::atomic<int64_t> encoded_tokens{0}, steps{0};
};

// Makes `host` serve a stub, which keeps `control` alive.
void UseStub(HostOptions* host, std::shared_ptr<StubControl> control);

}  // namespace quintet
