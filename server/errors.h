// Conversion of an absl::Status to a gRPC status with google.rpc details. Messages may contain
// field names, numbers, limits and the request id. They never contain prompts, paths, addresses,
// API keys or messages of another library.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

namespace quintet {

// Values of ErrorInfo.reason for status codes that have several causes (DEADLINE_EXCEEDED,
// INTERNAL, RESOURCE_EXHAUSTED).
inline constexpr char kReasonQueued[] = "QUEUED";
inline constexpr char kReasonDecoding[] = "DECODING";
inline constexpr char kReasonIdle[] = "IDLE";
inline constexpr char kReasonEngineFault[] = "ENGINE_FAULT";
inline constexpr char kReasonOutOfMemory[] = "OUT_OF_MEMORY";
absl::Status WithReason(absl::Status status, absl::string_view reason);

// Returns the ErrorInfo.reason for a status: the reason that the status carries, if there is one
// (WithReason attaches any reason, kernels/base/out_of_memory.h attaches OUT_OF_MEMORY), otherwise
// the default of the status code ("INVALID_FIELD", "QUEUE_FULL", ...). Returns "" for OK and
// CANCELLED.
std::string ReasonOf(const absl::Status& status);

// The final status of an RPC.
struct RpcOutcome {
  grpc::Status status;
  std::string pushback_ms;  // value of grpc-retry-pushback-ms; empty: do not send this metadata
  std::string reason;       // ErrorInfo.reason in the details of `status`
};

// Returns whether `text` is a path of field names, such as "decoding.stop[2]". If one field is at
// fault, the message of an INVALID_ARGUMENT begins with such a path and ": ".
bool IsFieldPath(absl::string_view text);

// Converts `status`. An INVALID_ARGUMENT message of the form "field: text" also becomes a
// BadRequest violation. RESOURCE_EXHAUSTED and UNAVAILABLE carry a RetryInfo of about `retry_after`
// (jittered, clamped to [50 ms, 5 s]). The same delay is sent as grpc-retry-pushback-ms in the
// trailing metadata, which the retry policy of gRPC clients follows. The encoded details take at
// most 4 KiB.
RpcOutcome ToRpcOutcome(const absl::Status& status, absl::string_view request_id,
                        absl::Duration retry_after);
// Returns RESOURCE_EXHAUSTED for a failed allocation. Allocates nothing.
RpcOutcome OutOfMemoryOutcome();
// Returns INVALID_ARGUMENT for bytes that do not parse as the request message of the method.
RpcOutcome MalformedRequestOutcome();
// Adds the retry delay of `outcome`, if there is one, to the trailing metadata of `rpc`.
void AddPushback(const RpcOutcome& outcome, grpc::ServerContextBase* rpc);

}  // namespace quintet
