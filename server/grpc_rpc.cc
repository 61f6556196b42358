#include "server/grpc_rpc.h"

#include <chrono>
#include <new>
#include <utility>
#include <vector>

#include "server/load_reports.h"

namespace quintet {

TraceContext TraceContextOf(const grpc::ServerContextBase& rpc) {
  const auto values = [&](const char* key) {
    std::vector<absl::string_view> found;
    const auto [begin, end] = rpc.client_metadata().equal_range(key);
    for (auto at = begin; at != end; ++at) found.emplace_back(at->second.data(), at->second.size());
    return found;
  };
  return ParseTraceContext(values("traceparent"), values("tracestate"));
}

RpcOrigin GrpcRpc::origin() const { return {TraceContextOf(*context_), path_}; }

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

void GrpcRpc::AddLoadReport() {
  if (load_ == nullptr) return;
  const auto format = context_->client_metadata().find(kLoadFormatHeader);
  if (format == context_->client_metadata().end()) return;
  const auto report = load_->Header({format->second.data(), format->second.size()});
  if (report.has_value()) context_->AddTrailingMetadata(report->name, report->value);
}

void GrpcRpc::StartEnd(grpc::ByteBuffer* last_message, const RpcOutcome& outcome) {
  try {
    AddLoadReport();
  } catch (const std::bad_alloc&) {
    // The RPC ends without a report.
  }
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
