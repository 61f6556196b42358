// The calls that have not been answered yet. Thread safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace quintet {

class Call;

class OpenCalls {
 public:
  void Add(Call* call);
  // Deletes it. After AbandonAll nothing is deleted any more, since the engine may still hold it.
  void Close(Call* call);
  int64_t count() const;

  // Cancels the streams whose readers have stopped reading.
  void CancelStuck(int64_t now_us);
  // An engine is stuck and the process will end: answers every call without it.
  void AbandonAll();

 private:
  mutable std::mutex mutex_;
  std::unordered_set<Call*> calls_;
  bool abandoned_ = false;
};

}  // namespace quintet
