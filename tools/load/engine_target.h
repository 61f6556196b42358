// Load target that runs an engine in this process, to compare a server's performance with the
// engine's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tools/load/driver.h"
#include "tools/session.h"

namespace quintet {

class EngineTarget : public LoadTarget {
 public:
  // `session` must outlive the target; text prompts need its tokenizer. The engine runs in the
  // thread that calls Poll. `stream`: requests stream their tokens.
  EngineTarget(Session* session, bool stream) : session_(*session), stream_(stream) {}

  void Send(uint64_t id, const PlannedRequest& request) override;
  void Poll(int64_t timeout_us, LoadObserver* observer) override;

 private:
  class Sink;
  struct Event {
    uint64_t id = 0;
    int64_t at_us = 0;
    int64_t tokens = 0;
    bool end = false;
    RequestEnd how;
  };

  absl::StatusOr<Request> MakeRequest(const PlannedRequest& planned) const;
  void Add(Event event);

  Session& session_;
  const bool stream_;
  std::mutex mutex_;
  std::vector<Event> events_;  // events since the last Poll
};

}  // namespace quintet
