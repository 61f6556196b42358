#include "server/grpc_rpc.h"

#include <chrono>
#include <new>
#include <utility>

namespace quintet {

std::optional<int64_t> GrpcRpc::remaining_us() const {
  const auto now = std::chrono::system_clock::now();
  const auto deadline = context_->deadline();
  if (deadline >= now + std::chrono::hours(24 * 365)) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::microseconds>(deadline - now).count();
}

bool GrpcRpc::has_metadata(absl::string_view key, absl::string_view value) const {
  const auto found = context_->client_metadata().find({key.data(), key.size()});
  return found != context_->client_metadata().end() &&
         found->second == grpc::string_ref(value.data(), value.size());
}

void GrpcRpc::StartEnd(grpc::ByteBuffer* last_message, const RpcOutcome& outcome) {
  if (last_message != nullptr) {
    StartWriteAndFinish(last_message, grpc::WriteOptions(), outcome.status);
    return;
  }
  // The RPC must end even if there is no memory for its status.
  grpc::Status status(grpc::StatusCode::RESOURCE_EXHAUSTED, "out of memory");
  try {
    AddPushback(outcome, context_);
    status = outcome.status;
  } catch (const std::bad_alloc&) {
  }
  Reactor::Finish(std::move(status));
}

}  // namespace quintet
