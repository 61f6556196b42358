// The spans of a request, with the attributes of OpenTelemetry's semantic conventions (rpc.*,
// http.*, gen_ai.*). They hold no text of inputs or outputs, no addresses and no API keys. Times
// come from what the call and the engine have recorded anyway.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/request.h"
#include "server/access_log.h"
#include "server/span.h"
#include "server/tracer.h"

namespace quintet {

// The engine's part of a call: options, results and times that its spans show.
struct EngineTrace {
  std::optional<RequestKind> kind;  // unset: the engine got no request
  DecodingOptions decoding;         // kGenerate
  std::vector<FinishReason> finish_reasons;
  // Times of the engine, in microseconds since the submission of the requests: from the earliest to
  // the latest of the call's requests. Unset unless all of them have succeeded.
  struct Phases {
    int64_t queue_end_us = 0;  // when the last request left the queue
    int64_t encode_begin_us = 0, encode_end_us = 0;
    int64_t first_token_us = 0;  // 0: no token was generated
    int64_t end_us = 0;
  };
  std::optional<Phases> phases;

  // Records the requests of a call before they are submitted, and the results of all of them. Throw
  // std::bad_alloc.
  void SetRequests(std::span<const Request> requests);
  void SetResults(std::span<const Result> results);
};

// A call that has ended. Times are those of MonotonicMicros.
struct EndedCall {
  const StartedSpan& span;
  absl::string_view path;  // of the gRPC method: "/SERVICE/METHOD"; empty: an RPC of the HTTP API
  AccessRecord record;
  const EngineTrace* engine = nullptr;  // null: the call ended before it had an engine request
  int64_t arrival_us = 0, end_us = 0;
  int64_t tokenized_us = 0;  // 0: not yet
  int64_t started_us = 0;    // when the engine started the last request; 0: not yet
  bool submitted = false;    // the engine got requests
};

// Returns the span of the call and one for each phase that it has reached: tokenize (with the time
// in which the call waited for a thread and for its model), queue, encode, prefill (until the first
// token) and decode. `epoch_us`: the time since 1970 at which MonotonicMicros was 0. Throws
// std::bad_alloc.
std::vector<Span> CallSpans(const EndedCall& call, int64_t epoch_us);

// A request of the HTTP API that has ended.
struct EndedHttpRequest {
  const StartedSpan& span;
  absl::string_view method, route;
  int status = 0;  // of the response; 0: the client has gone before
  int64_t arrival_us = 0, end_us = 0;
};
Span HttpSpan(const EndedHttpRequest& request, int64_t epoch_us);

// The time since 1970 at which MonotonicMicros was 0, by the wall clock as it is now.
int64_t MonotonicEpochMicros();

}  // namespace quintet
