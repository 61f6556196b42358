#include "server/service.h"

#include <new>
#include <optional>
#include <utility>

#include "engine/clock.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

// The handler of an RPC that is rejected before its messages are read.
class RefusedRpc final : public grpc::ServerGenericBidiReactor {
 public:
  RefusedRpc(const RpcOutcome& outcome, grpc::CallbackServerContext* rpc) {
    AddPushback(outcome, rpc);
    Finish(outcome.status);
  }
  void OnDone() override { delete this; }
};

std::optional<absl::string_view> AuthorizationOf(const grpc::ServerContextBase& rpc) {
  const auto found = rpc.client_metadata().find("authorization");
  if (found == rpc.client_metadata().end()) return std::nullopt;
  return absl::string_view(found->second.data(), found->second.size());
}

}  // namespace

void RpcService::Add(std::vector<Method> methods) {
  for (Method& method : methods) {
    std::string path = method.path;
    methods_.emplace(std::move(path), std::move(method));
  }
}

absl::StatusOr<std::shared_ptr<GrpcRpc>> RpcService::Open(grpc::GenericCallbackServerContext* rpc) {
  const auto found = methods_.find(rpc->method());
  Priority max_priority = Priority::kHigh;
  if (found == methods_.end() || found->second.needs_key) {
    QT_ASSIGN_OR_RETURN(max_priority, context_->Authorize(AuthorizationOf(*rpc)));
  }
  if (found == methods_.end()) {
    return absl::UnimplementedError(
        "this server does not implement the method; it has the methods of quintet.v1.Inference, "
        "and those of inference.GRPCInferenceService but shared memory, loading and unloading of "
        "models, trace and log settings");
  }
  const Method& method = found->second;
  QT_ASSIGN_OR_RETURN(RpcRegistry::Registration registration,
                      context_->rpcs.Admit(rpc->peer(), method.long_lived));
  GrpcRpc::Options options;
  options.open = &context_->rpcs;
  options.timeouts = timeouts_;
  options.max_priority = max_priority;
  options.path = found->first;
  options.load = context_->load;
  auto opened = std::make_shared<GrpcRpc>(rpc, options, std::move(registration));
  opened->Start(method.make(opened));
  return opened;
}

void RpcService::RecordRefused(const grpc::GenericCallbackServerContext& rpc,
                               const absl::Status& status, int64_t arrival_us) const {
  if (context_->access_log == nullptr && context_->tracer == nullptr) return;
  // Record only names of methods that exist: any other path is text that the client has chosen.
  const auto found = methods_.find(rpc.method());
  const bool known = found != methods_.end();
  const std::string reason = ReasonOf(status);
  const StartedSpan span =
      StartSpan(known ? context_->tracer : nullptr, TraceContextOf(rpc), /*remote=*/true);
  EndedCall ended{.span = span};
  if (known) ended.path = found->first;
  ended.arrival_us = arrival_us;
  ended.end_us = MonotonicMicros();
  AccessRecord& record = ended.record;
  record.method = ended.path.substr(ended.path.rfind('/') + 1);
  record.trace_id = span.context.trace_id;
  record.code = static_cast<int>(status.code());
  record.reason = reason;
  record.total_us = ended.end_us - arrival_us;
  context_->Record(ended);
}

grpc::ServerGenericBidiReactor* RpcService::CreateReactor(grpc::GenericCallbackServerContext* rpc) {
  const int64_t arrival_us = MonotonicMicros();
  try {
    absl::StatusOr<std::shared_ptr<GrpcRpc>> opened = Open(rpc);
    if (opened.ok()) return opened->get();  // the RPC holds a reference to itself until OnDone
    context_->refusals->Rejected(ReasonOf(opened.status()));
    RecordRefused(*rpc, opened.status(), arrival_us);
    return new RefusedRpc(ToRpcOutcome(opened.status(), "", absl::Milliseconds(200)), rpc);
  } catch (const std::bad_alloc&) {
    return new RefusedRpc(OutOfMemoryOutcome(), rpc);
  }
}

}  // namespace quintet
