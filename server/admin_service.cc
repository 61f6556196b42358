#include "server/admin_service.h"

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "engine/clock.h"
#include "inference/grpc_inference.pb.h"
#include "kernels/base/status_macros.h"
#include "quintet/admin/v1/admin.pb.h"
#include "server/kserve/methods.h"
#include "server/message_bytes.h"
#include "server/model_info.h"
#include "server/single_message_handler.h"

namespace quintet {
namespace {

namespace admin_pb = ::quintet::admin::v1;
namespace kserve = ::inference;

// An RPC of one request message and one response, which another thread may send later.
template <typename RequestProto, typename ResponseProto>
class AdminCall final
    : public SingleMessageHandler,
      public std::enable_shared_from_this<AdminCall<RequestProto, ResponseProto>> {
 public:
  // Called once, from any thread.
  using Reply = std::function<void(const absl::StatusOr<ResponseProto>&)>;
  using Run = std::function<void(const RequestProto&, Reply)>;

  AdminCall(CallContext* context, std::shared_ptr<Rpc> rpc, const char* name, Run run)
      : context_(context), rpc_(std::move(rpc)), name_(name), run_(std::move(run)) {}

  void OnMessage(grpc::ByteBuffer* message) override {
    SetReceived();
    RequestProto request;
    if (!FromBytes(message, &request)) return End(MalformedRequestOutcome(), std::nullopt);
    run_(request, [self = this->shared_from_this()](const absl::StatusOr<ResponseProto>& response) {
      if (response.ok()) {
        self->End({}, ToBytes(*response));
      } else {
        self->End(ToRpcOutcome(response.status(), "", absl::Seconds(1)), std::nullopt);
      }
    });
  }
  void OnInputEnd() override { End(MalformedRequestOutcome(), std::nullopt); }
  // Ends only the RPC: the operation on the model continues.
  void OnCancel() override {
    End(ToRpcOutcome(absl::CancelledError("the call was cancelled"), "", absl::ZeroDuration()),
        std::nullopt);
  }
  void Abandon() override { OnCancel(); }

 private:
  void End(RpcOutcome outcome, std::optional<grpc::ByteBuffer> response) {
    if (ended_.exchange(true)) return;
    if (context_->access_log != nullptr) {
      AccessRecord record;
      record.method = name_;
      record.code = outcome.status.error_code();
      record.reason = outcome.reason;
      record.total_us = MonotonicMicros() - arrival_us_;
      context_->access_log->Write(record);
    }
    if (response.has_value()) SetResponse(*std::move(response));
    SetOutcome(std::move(outcome));
    rpc_->Wake();
  }

  CallContext* const context_;
  const std::shared_ptr<Rpc> rpc_;
  const char* const name_;
  const Run run_;
  const int64_t arrival_us_ = MonotonicMicros();
  std::atomic<bool> ended_ = false;
};

// Replaces the field name "call.model" in an error by `field`, the name in the admin request.
absl::Status InTermsOf(const char* field, const absl::Status& status) {
  absl::string_view message = status.message();
  if (!absl::ConsumePrefix(&message, "call.model: ")) return status;
  return absl::Status(status.code(), absl::StrCat(field, ": ", message));
}

void WriteModel(const ServedModel& served, admin_pb::Model* model) {
  const ServedModel::View view = served.view();
  model->set_model(served.name());
  model->set_state(StateToProto(view.state));
  model->set_version(view.version);
  model->set_ready(view.accepts);
  model->set_retired_versions(static_cast<uint32_t>(view.retired));
  model->set_waiting_calls(static_cast<uint32_t>(served.waiting()));
  model->set_failure(view.failure);
  if (view.host == nullptr) return;
  model->set_weights_sha256(view.host->weights_sha256());
  model->set_load_seconds(view.host->load_seconds());
}

void WriteChange(const ModelChange& change, admin_pb::ModelChange* to) {
  to->set_model(change.model);
  to->set_action(static_cast<admin_pb::ModelChange::Action>(change.action));
  to->set_failure(std::string(change.outcome.status.message()));
  to->set_version(change.outcome.version);
  to->set_drained_first(change.outcome.drained_first);
}

absl::StatusOr<admin_pb::ReloadConfigurationResponse> ResponseOf(
    const absl::StatusOr<std::vector<ModelChange>>& changes) {
  if (absl::IsUnavailable(changes.status())) return changes.status();
  if (!changes.ok()) {
    return WithReason(absl::FailedPreconditionError(changes.status().message()), "CONFIGURATION");
  }
  admin_pb::ReloadConfigurationResponse response;
  for (const ModelChange& change : *changes) WriteChange(change, response.add_changes());
  return response;
}

template <typename RequestProto, typename ResponseProto>
Method MethodOf(const char* service, const char* name, CallContext* context,
                typename AdminCall<RequestProto, ResponseProto>::Run run) {
  Method method;
  method.path = absl::StrCat("/", service, "/", name);
  method.make = [name, context, run = std::move(run)](std::shared_ptr<Rpc> rpc) {
    return std::make_shared<AdminCall<RequestProto, ResponseProto>>(context, std::move(rpc), name,
                                                                    run);
  };
  return method;
}

using Begin = void (ModelLoader::*)(const std::string&, ModelDone);

// A method that loads, replaces or unloads a model and then responds with the model's state.
template <typename RequestProto, typename ResponseProto>
Method ModelMethod(const char* name, CallContext* context, ModelLoader* loader, Begin begin) {
  return MethodOf<RequestProto, ResponseProto>(
      kAdminService, name, context, [=](const RequestProto& request, auto reply) {
        const auto served = context->models->Find(request.model());
        if (!served.ok()) return reply(InTermsOf("model", served.status()));
        (loader->*begin)((*served)->name(), [reply, served](const ModelOutcome& outcome) {
          if (!outcome.status.ok()) return reply(InTermsOf("model", outcome.status));
          ResponseProto response;
          WriteModel(**served, response.mutable_model());
          if constexpr (requires { response.set_drained_first(true); }) {
            response.set_drained_first(outcome.drained_first);
          }
          reply(response);
        });
      });
}

// A KServe method that loads or unloads a model and then sends an empty response.
template <typename RequestProto, typename ResponseProto>
Method RepositoryMethod(const char* name, CallContext* context, ModelLoader* loader, Begin begin,
                        const char* allowed_parameter) {
  return MethodOf<RequestProto, ResponseProto>(
      kKserveService, name, context, [=](const RequestProto& request, auto reply) {
        if (!request.repository_name().empty()) {
          return reply(absl::InvalidArgumentError(
              "repository_name: must be empty: the server has no named repositories"));
        }
        for (const auto& [parameter, value] : request.parameters()) {
          if (parameter == allowed_parameter) continue;
          return reply(absl::InvalidArgumentError(
              "parameters: not supported: the configuration file of the server holds the settings "
              "of a model"));
        }
        const auto served = context->models->Find(request.model_name());
        if (!served.ok()) return reply(InTermsOf("model_name", served.status()));
        (loader->*begin)((*served)->name(), [reply](const ModelOutcome& outcome) {
          if (!outcome.status.ok()) return reply(InTermsOf("model_name", outcome.status));
          reply(ResponseProto());
        });
      });
}

}  // namespace

std::vector<Method> AdminMethods(CallContext* context, ModelLoader* loader) {
  std::vector<Method> methods = {
      ModelMethod<admin_pb::LoadModelRequest, admin_pb::LoadModelResponse>(
          "LoadModel", context, loader, &ModelLoader::Load),
      ModelMethod<admin_pb::ReloadModelRequest, admin_pb::ReloadModelResponse>(
          "ReloadModel", context, loader, &ModelLoader::Reload),
      ModelMethod<admin_pb::UnloadModelRequest, admin_pb::UnloadModelResponse>(
          "UnloadModel", context, loader, &ModelLoader::Unload),
      RepositoryMethod<kserve::RepositoryModelLoadRequest, kserve::RepositoryModelLoadResponse>(
          "RepositoryModelLoad", context, loader, &ModelLoader::Reload, ""),
      RepositoryMethod<kserve::RepositoryModelUnloadRequest, kserve::RepositoryModelUnloadResponse>(
          "RepositoryModelUnload", context, loader, &ModelLoader::Unload, "unload_dependents")};
  methods.push_back(MethodOf<admin_pb::ListModelsRequest, admin_pb::ListModelsResponse>(
      kAdminService, "ListModels", context,
      [context](const admin_pb::ListModelsRequest&, auto reply) {
        admin_pb::ListModelsResponse response;
        for (const auto& model : context->models->models()) {
          WriteModel(*model, response.add_models());
        }
        reply(response);
      }));
  methods.push_back(
      MethodOf<admin_pb::ReloadConfigurationRequest, admin_pb::ReloadConfigurationResponse>(
          kAdminService, "ReloadConfiguration", context,
          [loader](const admin_pb::ReloadConfigurationRequest&, auto reply) {
            loader->ReloadConfiguration(
                [reply](const absl::StatusOr<std::vector<ModelChange>>& done) {
                  reply(ResponseOf(done));
                });
          }));
  return methods;
}

}  // namespace quintet
