// A stub model that computes nothing and takes as long as a test specifies. It replaces the shipped
// model in a server, uses the tokenizer of that model, and always generates the same token.
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

// Makes `host` serve a stub. The stub holds a reference to `control`.
void UseStub(HostOptions* host, std::shared_ptr<StubControl> control);

}  // namespace quintet
