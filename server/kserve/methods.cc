#include "server/kserve/methods.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/adapter_pool.h"
#include "server/field_names.h"
#include "server/kserve/infer.h"
#include "server/kserve/model.h"
#include "server/kserve/stream.h"
#include "server/message_bytes.h"
#include "server/single_message_handler.h"
#include "server/unary_call.h"

namespace quintet {
namespace {

// Bytes of a response about one model: the message and its serialized form.
constexpr int64_t kInfoBytes = 16384;

// Handler of a method that only reads the state of the server: one request, one response. Such a
// call needs no admission and fails only if the request message is malformed.
template <typename RequestProto, typename ResponseProto>
class ProbeCall final : public SingleMessageHandler {
 public:
  using Answer = std::function<void(const RequestProto&, ResponseProto*)>;
  explicit ProbeCall(Answer answer) : answer_(std::move(answer)) {}

  void OnMessage(grpc::ByteBuffer* message) override {
    RequestProto request;
    ResponseProto response;
    const bool read = FromBytes(message, &request);
    if (read) {
      answer_(request, &response);
      SetResponse(ToBytes(response));
    }
    SetOutcome(read ? RpcOutcome{} : MalformedRequestOutcome());
    SetReceived();
  }
  void OnInputEnd() override { SetOutcome(MalformedRequestOutcome()); }
  void OnCancel() override {}

 private:
  const Answer answer_;
};

// A method that returns properties of one model and does not use the model's engine.
template <typename RequestProto, typename ResponseProto>
class ModelCall final : public UnaryCall<RequestProto, ResponseProto> {
 public:
  using Fill = void (*)(const ModelHost& host, ResponseProto* response);
  ModelCall(CallContext* context, std::shared_ptr<Rpc> rpc, const char* name, Fill fill)
      : UnaryCall<RequestProto, ResponseProto>(context, std::move(rpc), name), fill_(fill) {}

 private:
  CallSize Size(const RequestProto&) const override { return {0, {}}; }
  int64_t ResponseBound() override { return kInfoBytes; }
  absl::Status Renamed(const absl::Status& status) const override {
    return RenamedField(status, {{"call.model", "name"}});
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    QT_RETURN_IF_ERROR(CheckVersion(this->request_->version(), "version"));
    return std::vector<Request>();
  }
  void Write(const std::vector<Result>&, ResponseProto* response) override {
    fill_(this->host(), response);
  }

  const Fill fill_;
};

class ServerMetadataCall final
    : public UnaryCall<kserve::ServerMetadataRequest, kserve::ServerMetadataResponse> {
 public:
  ServerMetadataCall(CallContext* context, std::shared_ptr<Rpc> rpc, std::string version)
      : UnaryCall(context, std::move(rpc), "ServerMetadata"), version_(std::move(version)) {}

 private:
  bool needs_model() const override { return false; }
  CallSize Size(const kserve::ServerMetadataRequest&) const override { return {0, {}}; }
  absl::StatusOr<std::vector<Request>> Prepare() override { return std::vector<Request>(); }
  void Write(const std::vector<Result>&, kserve::ServerMetadataResponse* response) override {
    response->set_name("quintet");
    response->set_version(version_);
    for (const char* extension :
         {"model_configuration", "statistics", "schedule_policy", "parameters"}) {
      response->add_extensions(extension);
    }
  }

  const std::string version_;
};

// Handler of the methods about all models: RepositoryIndex, and ModelStatistics without a name.
template <typename RequestProto, typename ResponseProto>
class ModelsCall : public UnaryCall<RequestProto, ResponseProto> {
 public:
  using UnaryCall<RequestProto, ResponseProto>::UnaryCall;

 private:
  bool needs_model() const override { return false; }
  CallSize Size(const RequestProto&) const override { return {0, {}}; }
  int64_t ResponseBound() override {
    return kInfoBytes * static_cast<int64_t>(this->context().models->size());
  }
};

class ModelStatisticsCall final
    : public ModelsCall<kserve::ModelStatisticsRequest, kserve::ModelStatisticsResponse> {
 public:
  ModelStatisticsCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : ModelsCall(context, std::move(rpc), "ModelStatistics") {}

 private:
  absl::Status Renamed(const absl::Status& status) const override {
    return RenamedField(status, {{"call.model", "name"}});
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    QT_RETURN_IF_ERROR(CheckVersion(request_->version(), "version"));
    std::vector<std::shared_ptr<ServedModel>> models = context().models->models();
    if (!request_->name().empty()) {
      QT_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> model,
                          context().models->Find(request_->name()));
      models = {std::move(model)};
    }
    for (const auto& model : models) {
      std::shared_ptr<const ModelHost> host = model->view().host;
      if (host != nullptr) {
        hosts_.push_back(std::move(host));
      } else if (!request_->name().empty()) {
        return absl::UnavailableError("the model is not loaded");
      }
    }
    return std::vector<Request>();
  }
  void Write(const std::vector<Result>&, kserve::ModelStatisticsResponse* response) override {
    for (const auto& host : hosts_) WriteStatistics(*host, response->add_model_stats());
    hosts_.clear();
  }

  std::vector<std::shared_ptr<const ModelHost>> hosts_;
};

class RepositoryIndexCall final
    : public ModelsCall<kserve::RepositoryIndexRequest, kserve::RepositoryIndexResponse> {
 public:
  RepositoryIndexCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : ModelsCall(context, std::move(rpc), "RepositoryIndex") {}

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override {
    if (request_->repository_name().empty()) return std::vector<Request>();
    return absl::InvalidArgumentError(
        "repository_name: must be empty: the server has no named repositories");
  }
  void Write(const std::vector<Result>&, kserve::RepositoryIndexResponse* response) override {
    for (const auto& model : context().models->models()) {
      const ServedModel::View view = model->view();
      if (view.accepts || !request_->ready()) WriteIndex(*model, view, response->add_models());
    }
  }
};

class ModelInferCall final
    : public UnaryCall<kserve::ModelInferRequest, kserve::ModelInferResponse> {
 public:
  ModelInferCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "ModelInfer") {}

 private:
  v1::CallOptions CallOptionsOf(kserve::ModelInferRequest* request) override {
    task_.Read(*request, ReserveMemory(InferTask::MemoryToRead(*request)));
    request_.Reset();
    return task_.call();
  }
  CallSize Size(const kserve::ModelInferRequest&) const override { return task_.size(); }
  int64_t ResponseBound() override { return task_.ResponseBound(host(), input_limits()); }
  int64_t ResponseMemory(const std::vector<Request>& requests) const override {
    return task_.ResponseMemory(requests, host());
  }
  absl::Status Renamed(const absl::Status& status) const override {
    return InferTask::Renamed(status);
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    return task_.Prepare(host(), input_limits());
  }
  void Write(const std::vector<Result>& results, kserve::ModelInferResponse* response) override {
    v1::CallInfo info;
    FillInfo(results, &info);
    task_.Write(host(), results, info, response);
  }

  InferTask task_{/*streams=*/false};
};

using Make = std::function<std::shared_ptr<RpcHandler>(std::shared_ptr<Rpc>)>;

Method MethodOf(const char* name, bool needs_key, Make make) {
  Method method;
  method.path = absl::StrCat("/", kKserveService, "/", name);
  method.needs_key = needs_key;
  method.make = std::move(make);
  return method;
}

template <typename RequestProto, typename ResponseProto>
Method ProbeMethod(const char* name,
                   typename ProbeCall<RequestProto, ResponseProto>::Answer answer) {
  return MethodOf(name, /*needs_key=*/false, [answer](std::shared_ptr<Rpc>) {
    return std::make_shared<ProbeCall<RequestProto, ResponseProto>>(answer);
  });
}

template <typename Handler>
Method CallMethod(const char* name, CallContext* context) {
  return MethodOf(name, /*needs_key=*/true, [context](std::shared_ptr<Rpc> rpc) {
    return std::make_shared<Handler>(context, std::move(rpc));
  });
}

template <typename RequestProto, typename ResponseProto>
Method ModelMethod(const char* name, CallContext* context,
                   typename ModelCall<RequestProto, ResponseProto>::Fill fill) {
  return MethodOf(name, /*needs_key=*/true, [name, context, fill](std::shared_ptr<Rpc> rpc) {
    return std::make_shared<ModelCall<RequestProto, ResponseProto>>(context, std::move(rpc), name,
                                                                    fill);
  });
}

// Whether the serving version has the adapter. If no version serves, whether the configuration of
// the next version has it. True if `adapter` is empty.
bool HasAdapter(const ServedModel& model, const std::string& adapter) {
  if (adapter.empty()) return true;
  const ServedModel::View view = model.view();
  return view.host != nullptr ? view.host->adapters().Find(adapter).ok()
                              : FindAdapter(view.options->load.adapters, adapter).ok();
}

std::vector<Method> ProbeMethods(CallContext* context, const KserveOptions& options) {
  using Live = kserve::ServerLiveRequest;
  using Ready = kserve::ServerReadyRequest;
  return {ProbeMethod<Live, kserve::ServerLiveResponse>(
              "ServerLive",
              [live = options.live](const Live&, kserve::ServerLiveResponse* response) {
                response->set_live(live());
              }),
          ProbeMethod<Ready, kserve::ServerReadyResponse>(
              "ServerReady",
              [ready = options.ready](const Ready&, kserve::ServerReadyResponse* response) {
                response->set_ready(ready());
              }),
          ProbeMethod<kserve::ModelReadyRequest, kserve::ModelReadyResponse>(
              "ModelReady",
              [context, draining = options.draining](const kserve::ModelReadyRequest& request,
                                                     kserve::ModelReadyResponse* response) {
                std::string adapter;
                const auto model = context->models->FindWithAdapter(request.name(), &adapter);
                response->set_ready(model.ok() && (*model)->accepts() && !draining() &&
                                    HasAdapter(**model, adapter) &&
                                    CheckVersion(request.version(), "version").ok());
              })};
}

}  // namespace

std::vector<Method> KserveMethods(CallContext* context, const KserveOptions& options) {
  std::vector<Method> methods = ProbeMethods(context, options);
  methods.push_back(MethodOf("ServerMetadata", /*needs_key=*/true,
                             [context, version = options.version](std::shared_ptr<Rpc> rpc) {
                               return std::make_shared<ServerMetadataCall>(context, std::move(rpc),
                                                                           version);
                             }));
  methods.push_back(ModelMethod<kserve::ModelMetadataRequest, kserve::ModelMetadataResponse>(
      "ModelMetadata", context, WriteMetadata));
  methods.push_back(ModelMethod<kserve::ModelConfigRequest, kserve::ModelConfigResponse>(
      "ModelConfig", context, [](const ModelHost& host, kserve::ModelConfigResponse* response) {
        WriteConfig(host, response->mutable_config());
      }));
  methods.push_back(CallMethod<ModelStatisticsCall>("ModelStatistics", context));
  methods.push_back(CallMethod<RepositoryIndexCall>("RepositoryIndex", context));
  methods.push_back(CallMethod<ModelInferCall>("ModelInfer", context));
  methods.push_back(CallMethod<InferStream>("ModelStreamInfer", context));
  methods.back().long_lived = true;
  return methods;
}

}  // namespace quintet
