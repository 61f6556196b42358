#include "server/open_calls.h"

#include <vector>

#include "server/call.h"

namespace quintet {

void OpenCalls::Add(Call* call) {
  std::lock_guard<std::mutex> lock(mutex_);
  calls_.insert(call);
}

void OpenCalls::Close(Call* call) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (abandoned_) return;
    calls_.erase(call);
  }
  delete call;
}

int64_t OpenCalls::count() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(calls_.size());
}

void OpenCalls::CancelStuck(int64_t now_us) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Call* call : calls_) call->CancelIfStuck(now_us);
}

void OpenCalls::AbandonAll() {
  std::vector<Call*> calls;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    abandoned_ = true;
    calls.assign(calls_.begin(), calls_.end());
  }
  for (Call* call : calls) call->Abandon();
}

}  // namespace quintet
