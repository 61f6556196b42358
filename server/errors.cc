#include "server/errors.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace quintet {
namespace {

constexpr char kReasonPayload[] = "quintet.reason";
constexpr size_t kMaxMessageBytes = 1024;

absl::Duration Jittered(absl::Duration wanted) {
  static thread_local absl::BitGen random;
  const double factor = absl::Uniform(random, 0.75, 1.25);
  return std::clamp(wanted * factor, absl::Milliseconds(50), absl::Seconds(5));
}

void AddBadRequest(absl::string_view message, google::rpc::Status* proto) {
  const size_t colon = message.find(": ");
  if (colon == absl::string_view::npos || !IsFieldPath(message.substr(0, colon))) return;
  google::rpc::BadRequest bad_request;
  auto* violation = bad_request.add_field_violations();
  violation->set_field(std::string(message.substr(0, colon)));
  violation->set_description(std::string(message.substr(colon + 2)));
  proto->add_details()->PackFrom(bad_request);
}

std::string AddRetryInfo(absl::Duration retry_after, google::rpc::Status* proto) {
  const int64_t ms = absl::ToInt64Milliseconds(Jittered(retry_after));
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(ms / 1000);
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(ms % 1000 * 1000000));
  proto->add_details()->PackFrom(retry);
  return absl::StrCat(ms);
}

}  // namespace

bool IsFieldPath(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '[' ||
           c == ']';
  });
}

absl::Status WithReason(absl::Status status, absl::string_view reason) {
  status.SetPayload(kReasonPayload, absl::Cord(reason));
  return status;
}

std::string ReasonOf(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kReasonPayload)) return std::string(*payload);
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
      return "";
    case absl::StatusCode::kInvalidArgument:
      return "INVALID_FIELD";
    case absl::StatusCode::kNotFound:
      return "MODEL_NOT_FOUND";
    case absl::StatusCode::kFailedPrecondition:
      return "HEAD_MISSING";
    case absl::StatusCode::kResourceExhausted:
      return "QUEUE_FULL";
    case absl::StatusCode::kUnavailable:
      return "NOT_READY";
    case absl::StatusCode::kDeadlineExceeded:
      return kReasonDecoding;
    case absl::StatusCode::kUnimplemented:
      return "NO_METHOD";
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return "AUTH";
    default:
      return "BUG";
  }
}

RpcOutcome ToRpcOutcome(const absl::Status& status, absl::string_view request_id,
                        absl::Duration retry_after) {
  RpcOutcome outcome;
  if (status.ok()) return outcome;
  const std::string reason = ReasonOf(status);
  // The message of an internal error may quote anything, so the client gets only the request id.
  const std::string message = reason == "BUG"
                                  ? absl::StrCat("internal error, request ", request_id)
                                  : std::string(status.message().substr(0, kMaxMessageBytes));
  google::rpc::Status proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(message);
  if (!reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(reason);
    info.set_domain("quintet");
    (*info.mutable_metadata())["request_id"] = std::string(request_id);
    proto.add_details()->PackFrom(info);
  }
  if (reason == "INVALID_FIELD") AddBadRequest(message, &proto);
  if (absl::IsResourceExhausted(status) || reason == "NOT_READY") {
    outcome.pushback_ms = AddRetryInfo(retry_after, &proto);
  }
  outcome.status = grpc::Status(static_cast<grpc::StatusCode>(status.code()), message,
                                proto.SerializeAsString());
  outcome.reason = reason;
  return outcome;
}

RpcOutcome OutOfMemoryOutcome() {
  RpcOutcome outcome;
  // Allocates nothing: the message is short enough for the buffer inside a std::string.
  outcome.status = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "out of memory");
  return outcome;
}

RpcOutcome MalformedRequestOutcome() {
  return ToRpcOutcome(
      absl::InvalidArgumentError("the message does not parse as the request of this method: "
                                 "malformed bytes, or text that is not UTF-8"),
      "", absl::ZeroDuration());
}

void AddPushback(const RpcOutcome& outcome, grpc::ServerContextBase* rpc) {
  if (!outcome.pushback_ms.empty()) {
    rpc->AddTrailingMetadata("grpc-retry-pushback-ms", outcome.pushback_ms);
  }
}

}  // namespace quintet
