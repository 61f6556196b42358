#include "server/admin_server.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/address.h"
#include "server/admin_service.h"
#include "server/credentials.h"
#include "server/kserve/methods.h"
#include "server/reflection.h"
#include "server/transport_limits.h"

namespace quintet {
namespace {

constexpr char kFlag[] = "--admin-listen";

// Returns KServe's methods for health and for the list of models; they change nothing.
std::vector<Method> IndexMethods(CallContext* context, HealthStatus* health) {
  std::vector<Method> chosen;
  for (Method& method : KserveMethods(context, {.live = [] { return true; },
                                               .ready = [health] { return health->serving(); },
                                               .draining = [] { return false; },
                                               .version = ""})) {
    for (const char* name : {"/ServerLive", "/ServerReady", "/ModelReady", "/RepositoryIndex"}) {
      if (absl::EndsWith(method.path, name)) chosen.push_back(std::move(method));
    }
  }
  return chosen;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(
    const ServerOptions& options, const CallContext& calls, ModelLoader* loader,
    HealthStatus* health, const CertificateFiles* certificates) {
  if (options.admin_api_key_file.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kFlag, ": needs --admin-api-key-file, the keys of administrators"));
  }
  std::unique_ptr<AdminServer> admin(new AdminServer());
  QT_RETURN_IF_ERROR(admin->keys_.Load(options.admin_api_key_file));
  CallContext& context = admin->context_;
  context.models = calls.models;
  context.preparation = calls.preparation;
  context.completion = calls.completion;
  context.writer = calls.writer;
  context.memory = calls.memory;
  context.refusals = calls.refusals;
  context.access_log = calls.access_log;
  context.tracer = calls.tracer;
  context.max_message_bytes = calls.max_message_bytes;
  context.default_timeout_us = calls.default_timeout_us;
  context.max_timeout_us = calls.max_timeout_us;
  context.api_keys = &admin->keys_;
  admin->service_ = std::make_unique<RpcService>(&context, options.client_timeouts);
  admin->service_->Add(AdminMethods(&context, loader));
  admin->service_->Add(IndexMethods(&context, health));
  admin->service_->Add(HealthMethods(health));
  QT_RETURN_IF_ERROR(admin->Listen(options, certificates));
  return admin;
}

absl::Status AdminServer::Listen(const ServerOptions& options,
                                 const CertificateFiles* certificates) {
  QT_RETURN_IF_ERROR(listener_.Bind(kFlag, options.admin_listen));
  QT_ASSIGN_OR_RETURN(const Address address, ParseAddress(kFlag, options.admin_listen));
  if (IsLoopback(address)) {
    service_->Add(ReflectionMethods({kAdminService, kKserveService, "grpc.health.v1.Health"}));
  }
  grpc::ServerBuilder builder;
  SetTransportLimits(options, &builder);
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      MakeCredentials(certificates));
  builder.RegisterCallbackGenericService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC did not start");
  listener_.Start(std::move(acceptor));
  return absl::OkStatus();
}

AdminServer::~AdminServer() {
  if (server_ == nullptr) return;
  listener_.Stop();
  server_->Shutdown(std::chrono::system_clock::now() + kFlushTime);
  server_->Wait();
}

}  // namespace quintet
