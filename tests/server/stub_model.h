// A stub that replaces the shipped model in a server. It computes nothing, takes as long as a test
// specifies, uses the shipped model's tokenizer, and always generates the same token.
#pragma once

#include <atomic>
#include <memory>

#include "server/model_host.h"

namespace quintet {

struct StubControl {
  std::atomic<int64_t> step_us{0};    // duration of a decoder step
  std::atomic<int64_t> stall_at{-1};  // number of the step that never ends; -1: none
  std::atomic<int64_t> load_us{0};    // duration of loading
  std::atomic<int64_t> encoded_tokens{0}, steps{0};
};

// Makes `host` serve a stub model. The stub follows the values in `control` and keeps `control`
// alive.
void UseStub(HostOptions* host, std::shared_ptr<StubControl> control);

}  // namespace quintet
