#include "tools/load/engine_target.h"

#include <iterator>
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
  Sink(EventQueue* events, uint64_t id) : events_(events), id_(id) {}
  void OnTokens(int, std::span<const int32_t> ids, const std::string&) override {
    events_->OnTokens(id_, std::ssize(ids), MonotonicMicros());
  }
  void OnDone(absl::StatusOr<Result> result) override {
    RequestEnd end{.code = result.status().code()};
    if (result.ok()) {
      end.input_tokens = result->input_tokens;
      end.output_tokens = result->output_tokens;
    }
    events_->OnEnd(id_, end, MonotonicMicros());
  }

 private:
  EventQueue* const events_;
  const uint64_t id_;
};

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
    request->sink = std::make_shared<Sink>(&events_, id);
    status = session_.engine->Submit(*std::move(request)).status();
  }
  if (status.ok()) return;
  events_.OnEnd(id, {.code = status.code()}, MonotonicMicros());
}

void EngineTarget::Poll(int64_t timeout_us, LoadObserver* observer) {
  const bool more = session_.engine->Step();
  const bool idle = events_.PassTo(observer, /*timeout_us=*/0) == 0;
  if (idle && !more) session_.engine->WaitForWork(timeout_us);
}

}  // namespace quintet
