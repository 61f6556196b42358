#include "tools/load/engine_target.h"

#include <span>
#include <utility>

#include "engine/clock.h"
#include "kernels/base/status_macros.h"
#include "tools/line_format.h"

namespace quintet {

// The engine calls a Sink during Engine::Step; at that time no function of the engine may be
// called. Therefore a Sink only queues events. Poll passes them to the observer after the step.
class EngineTarget::Sink : public ResponseSink {
 public:
  Sink(EngineTarget* target, uint64_t id) : target_(target), id_(id) {}
  void OnTokens(int, std::span<const int32_t> ids, const std::string&) override {
    target_->Add({.id = id_, .tokens = static_cast<int64_t>(ids.size())});
  }
  void OnDone(absl::StatusOr<Result> result) override {
    Event event{.id = id_, .end = true};
    event.how.code = result.status().code();
    if (result.ok()) {
      event.how.input_tokens = result->input_tokens;
      event.how.output_tokens = result->output_tokens;
    }
    target_->Add(std::move(event));
  }

 private:
  EngineTarget* const target_;
  const uint64_t id_;
};

void EngineTarget::Add(Event event) {
  event.at_us = MonotonicMicros();
  std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(std::move(event));
}

absl::StatusOr<Request> EngineTarget::MakeRequest(const PlannedRequest& planned) const {
  Request request;
  if (planned.ids.empty()) {
    QT_ASSIGN_OR_RETURN(request.input, EncodeText(session_, planned.text, true));
  } else {
    request.input.assign(planned.ids.begin(), planned.ids.end());
  }
  DecodingRequest decoding;
  decoding.num_beams = planned.num_beams;
  if (planned.output_tokens > 0) {
    decoding.max_new_tokens = planned.output_tokens;
    decoding.ignore_eos = true;
  }
  DecodingLimits limits;
  limits.max_input_tokens = static_cast<uint32_t>(session_.flags.max_input_tokens);
  QT_ASSIGN_OR_RETURN(request.decoding, ResolveDecoding(decoding, session_.defaults,
                                                        session_.config, limits, request.input));
  request.stream = stream_;
  return request;
}

void EngineTarget::Send(uint64_t id, const PlannedRequest& planned) {
  absl::StatusOr<Request> request = MakeRequest(planned);
  absl::Status status = request.status();
  if (status.ok()) {
    request->sink = std::make_shared<Sink>(this, id);
    status = session_.engine->Submit(*std::move(request)).status();
  }
  if (status.ok()) return;
  Event event{.id = id, .end = true};
  event.how.code = status.code();
  Add(std::move(event));
}

void EngineTarget::Poll(int64_t timeout_us, LoadObserver* observer) {
  const bool more = session_.engine->Step();
  std::vector<Event> events;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    events.swap(events_);
  }
  for (const Event& event : events) {
    if (event.end) {
      observer->OnEnd(event.id, event.how, event.at_us);
    } else {
      observer->OnTokens(event.id, event.tokens, event.at_us);
    }
  }
  if (!more && events.empty()) session_.engine->WaitForWork(timeout_us);
}

}  // namespace quintet
