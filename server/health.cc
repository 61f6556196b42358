#include "server/health.h"

#include <optional>
#include <utility>

#include "grpc/health/v1/health.pb.h"
#include "server/message_bytes.h"

namespace quintet {
namespace {

namespace health_pb = grpc::health::v1;

grpc::ByteBuffer MakeResponse(health_pb::HealthCheckResponse::ServingStatus status) {
  health_pb::HealthCheckResponse response;
  response.set_status(status);
  return ToBytes(response);
}

health_pb::HealthCheckResponse::ServingStatus StatusOf(const HealthStatus& status,
                                                       const std::string& service) {
  if (!HealthStatus::IsKnown(service)) return health_pb::HealthCheckResponse::SERVICE_UNKNOWN;
  return status.serving() ? health_pb::HealthCheckResponse::SERVING
                          : health_pb::HealthCheckResponse::NOT_SERVING;
}

// Handler of one RPC of the health service: Watch if `watch` is set, otherwise Check.
class HealthCall final : public RpcHandler {
 public:
  HealthCall(HealthStatus* status, std::shared_ptr<Rpc> rpc, bool watch)
      : status_(status), rpc_(std::move(rpc)), watch_(watch) {
    if (watch_) status_->Add(rpc_.get());
  }
  ~HealthCall() override {
    if (watch_) status_->Remove(rpc_.get());
  }

  void OnMessage(grpc::ByteBuffer* message) override {
    health_pb::HealthCheckRequest request;
    const bool read = FromBytes(message, &request);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!read) {
      failure_ = MalformedRequestOutcome();
    } else if (!watch_ && !HealthStatus::IsKnown(request.service())) {
      failure_ = RpcOutcome{{grpc::StatusCode::NOT_FOUND, "no such service"}, ""};
    } else {
      service_ = request.service();
    }
  }
  void OnInputEnd() override {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = MalformedRequestOutcome();
  }
  void OnCancel() override {}

  RpcActivity activity() const override {
    std::lock_guard<std::mutex> lock(mutex_);
    return service_.has_value() ? RpcActivity::kWatching : RpcActivity::kAwaitingClient;
  }
  bool wants_message() const override { return activity() == RpcActivity::kAwaitingClient; }
  RpcOutput Next() override {
    RpcOutput output;
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.has_value()) {
      output.end = *failure_;
    } else if (service_.has_value()) {
      const auto now = StatusOf(*status_, *service_);
      if (last_ != now) output.message = MakeResponse(now);
      last_ = now;
      if (!watch_) output.end = RpcOutcome{};
    }
    return output;
  }

 private:
  HealthStatus* const status_;
  const std::shared_ptr<Rpc> rpc_;
  const bool watch_;
  mutable std::mutex mutex_;
  std::optional<std::string> service_;  // set by the first valid message
  std::optional<RpcOutcome> failure_;
  // The status that was sent last.
  std::optional<health_pb::HealthCheckResponse::ServingStatus> last_;
};

}  // namespace

void HealthStatus::SetServing(bool serving) {
  std::vector<std::shared_ptr<Rpc>> watches;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    serving_ = serving;
    for (Rpc* watch : watches_) watches.push_back(watch->shared_from_this());
  }
  for (const std::shared_ptr<Rpc>& watch : watches) watch->Wake();
}

bool HealthStatus::serving() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return serving_;
}

bool HealthStatus::IsKnown(const std::string& service) {
  return service.empty() || service == "quintet.v1.Inference" ||
         service == "inference.GRPCInferenceService";
}

void HealthStatus::Add(Rpc* watch) {
  std::lock_guard<std::mutex> lock(mutex_);
  watches_.insert(watch);
}

void HealthStatus::Remove(Rpc* watch) {
  std::lock_guard<std::mutex> lock(mutex_);
  watches_.erase(watch);
}

std::vector<Method> HealthMethods(HealthStatus* status) {
  std::vector<Method> methods;
  for (const bool watch : {false, true}) {
    Method method;
    method.path = watch ? "/grpc.health.v1.Health/Watch" : "/grpc.health.v1.Health/Check";
    method.needs_key = false;
    method.long_lived = watch;
    method.make = [status, watch](std::shared_ptr<Rpc> rpc) {
      return std::make_shared<HealthCall>(status, std::move(rpc), watch);
    };
    methods.push_back(std::move(method));
  }
  return methods;
}

}  // namespace quintet
