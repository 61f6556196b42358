#include "server/unreadable.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/support/server_interceptor.h"
#include "quintet/v1/inference.pb.h"
#include "spdlog/spdlog.h"

namespace quintet {
namespace {

using grpc::experimental::InterceptionHookPoints;

class Explainer : public grpc::experimental::Interceptor {
 public:
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      // No call of ours ends so: gRPC could not read the request.
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
          status.error_message().empty()) {
        methods->ModifySendStatus(UnreadableMessage().status);
      }
    }
    methods->Proceed();
  }
};

class ExplainerFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  ExplainerFactory() {
    const google::protobuf::ServiceDescriptor* service =
        v1::GenerateRequest::descriptor()->file()->service(0);
    for (int i = 0; i < service->method_count(); ++i) {
      methods_.insert(absl::StrCat("/", service->full_name(), "/", service->method(i)->name()));
    }
  }
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* rpc) override {
    // Methods that do not exist get the same status, and keep it.
    if (!methods_.contains(absl::string_view(rpc->method()))) return nullptr;
    return new Explainer;  // gRPC deletes it with the call
  }

 private:
  absl::flat_hash_set<std::string> methods_;
};

// It names a field and never holds its text. One line is enough: any client can cause more.
void LogOnce(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) spdlog::warn("a message was not readable (said once): {}", message);
}

}  // namespace

RpcOutcome UnreadableMessage() {
  return ToRpcOutcome(
      absl::InvalidArgumentError("the message cannot be read as the method's request: bytes that "
                                 "do not parse, or text that is not UTF-8"),
      "", absl::ZeroDuration());
}

void ExplainUnreadableMessages(grpc::ServerBuilder* builder) {
  google::protobuf::SetLogHandler(LogOnce);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<ExplainerFactory>());
  builder->experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace quintet
