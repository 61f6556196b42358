// Failures as clients see them: an absl::Status becomes a gRPC status with google.rpc details.
// Texts name field, number, limit and request id; never prompts, paths, addresses, keys or another
// library's words.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

namespace quintet {

// ErrorInfo.reason where the code alone does not say it (DEADLINE_EXCEEDED, INTERNAL).
inline constexpr char kReasonQueued[] = "QUEUED";
inline constexpr char kReasonDecoding[] = "DECODING";
inline constexpr char kReasonIdle[] = "IDLE";
inline constexpr char kReasonEngineFault[] = "ENGINE_FAULT";
inline constexpr char kReasonOutOfMemory[] = "OUT_OF_MEMORY";
absl::Status WithReason(absl::Status status, absl::string_view reason);

// ErrorInfo.reason of a status: its own (such as OUT_OF_MEMORY of kernels/out_of_memory.h), else
// what its code stands for ("INVALID_FIELD", "QUEUE_FULL", ...). "" for OK and CANCELLED.
std::string ReasonOf(const absl::Status& status);

// The status to finish a call with. INVALID_ARGUMENT messages of the form "field: text" also become
// a BadRequest violation. RESOURCE_EXHAUSTED and UNAVAILABLE carry a RetryInfo of about
// `retry_after` (jittered, 50 ms to 5 s), repeated as grpc-retry-pushback-ms in the trailing
// metadata, which gRPC's own retry obeys. At most 4 KiB of details.
struct RpcOutcome {
  grpc::Status status;
  std::string pushback_ms;  // trailing metadata to add before finishing; empty: none
};
RpcOutcome ToRpcOutcome(const absl::Status& status, absl::string_view request_id,
                        absl::Duration retry_after);
// What a call ends with when an allocation fails: RESOURCE_EXHAUSTED. Allocates nothing.
RpcOutcome OutOfMemoryOutcome();
// INVALID_ARGUMENT: bytes that do not parse as the method's request.
RpcOutcome UnreadableMessageOutcome();
void AddPushback(const RpcOutcome& outcome, grpc::ServerContextBase* rpc);

}  // namespace quintet
