// Load generator target: an engine in this process, without a server. With it, a server's
// performance can be compared with that of its engine alone.
#pragma once

#include <cstdint>
#include "tools/load/driver.h"
#include "tools/load/event_queue.h"
#include "tools/session.h"

namespace quintet {

class EngineTarget : public LoadTarget {
 public:
  // `session` must outlive this object; it needs a tokenizer if prompts are texts. The engine runs
  // in the thread that calls Poll. If `stream` is true, requests stream their tokens.
  EngineTarget(Session* session, bool stream) : session_(*session), stream_(stream) {}

  void Send(uint64_t id, const PlannedRequest& request) override;
  void Poll(int64_t timeout_us, LoadObserver* observer) override;

 private:
  class Sink;

  absl::StatusOr<Request> MakeRequest(const PlannedRequest& planned) const;

  Session& session_;
  const bool stream_;
  EventQueue events_;  // since the last Poll
};

}  // namespace quintet
