#include "tools/load/kserve_target.h"

#include <utility>
#include <vector>

#include "engine/clock.h"
#include "inference/grpc_inference.grpc.pb.h"
#include "kernels/base/status_macros.h"
#include "tools/load/grpc_target.h"

namespace quintet {
namespace {

RequestEnd EndOf(const grpc::Status& status, const inference::ModelInferResponse& response) {
  int64_t input_tokens = 0, output_tokens = 0;
  for (const auto& parameter : response.parameters()) {
    if (parameter.key() == "input_tokens") input_tokens = parameter.value().int64_param();
    if (parameter.key() == "output_tokens") output_tokens = parameter.value().int64_param();
  }
  return GrpcEnd(status, input_tokens, output_tokens);
}

// Whether a response of a stream is the last one.
bool IsFinal(const inference::ModelInferResponse& response) {
  for (const auto& parameter : response.parameters()) {
    if (parameter.key() == "triton_final_response") return parameter.value().bool_param();
  }
  return false;
}

// Number of token ids in a chunk: the last dimension of its output_ids.
int64_t TokensOf(const inference::ModelInferResponse& response) {
  for (const auto& output : response.outputs()) {
    if (output.name() == "output_ids") return output.shape(output.shape_size() - 1);
  }
  return 0;
}

using KserveCall = UnaryGrpcCall<inference::ModelInferResponse, EndOf>;

// A ModelStreamInfer with one request.
class KserveStreamCall final : public GrpcCall {
 public:
  using GrpcCall::GrpcCall;
  void Start(inference::GRPCInferenceService::Stub* stub,
             const inference::ModelInferRequest& request, grpc::CompletionQueue* queue) {
    request_ = request;
    context.AddMetadata("triton_grpc_error", "true");  // errors as statuses
    stream_ = stub->PrepareAsyncModelStreamInfer(&context, queue);
    stream_->StartCall(static_cast<GrpcCall*>(this));
  }
  bool Proceed(bool ok, LoadObserver* observer) override {
    switch (state_) {
      case State::kStarting:
        state_ = ok ? State::kWriting : State::kFinishing;
        if (!ok) break;
        stream_->WriteLast(request_, grpc::WriteOptions(), static_cast<GrpcCall*>(this));
        return true;
      case State::kReading:
        if (ok) TakeMessage(observer);
        [[fallthrough]];
      case State::kWriting:
        state_ = ok ? State::kReading : State::kFinishing;
        if (!ok) break;
        stream_->Read(&message_, static_cast<GrpcCall*>(this));
        return true;
      case State::kFinishing:
        observer->OnEnd(id_, EndOf(status_, response_), MonotonicMicros());
        return false;
    }
    stream_->Finish(&status_, static_cast<GrpcCall*>(this));
    return true;
  }

 private:
  enum class State { kStarting, kWriting, kReading, kFinishing };

  void TakeMessage(LoadObserver* observer) {
    const int64_t tokens = TokensOf(message_.infer_response());
    if (tokens > 0) observer->OnTokens(id_, tokens, MonotonicMicros());
    if (IsFinal(message_.infer_response())) {
      response_ = std::move(*message_.mutable_infer_response());
    }
  }

  inference::ModelInferRequest request_;
  inference::ModelInferResponse response_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<inference::ModelInferRequest,
                                                inference::ModelStreamInferResponse>>
      stream_;
  inference::ModelStreamInferResponse message_;
  State state_ = State::kStarting;
};

class KserveTarget final : public GrpcTarget {
 public:
  static absl::StatusOr<std::unique_ptr<ServerTarget>> Connect(const ServerTargetOptions& options) {
    std::unique_ptr<KserveTarget> target(new KserveTarget(options));
    QT_RETURN_IF_ERROR(target->ReadInfo());
    QT_RETURN_IF_ERROR(target->ReadOutputs());
    return target;
  }

  void Send(uint64_t id, const PlannedRequest& planned) override {
    using Stub = inference::GRPCInferenceService::Stub;
    Stub* const stub = stubs_[id % stubs_.size()].get();
    const inference::ModelInferRequest request = MakeRequest(planned);
    if (options_.stream) return Start<KserveStreamCall>(id, stub, request);
    Start<KserveCall>(id, stub, &Stub::PrepareAsyncModelInfer, request);
  }

 private:
  explicit KserveTarget(const ServerTargetOptions& options) : GrpcTarget(options) {
    for (const auto& channel : channels_) {
      stubs_.push_back(inference::GRPCInferenceService::NewStub(channel));
    }
  }
  // Sets returns_text_.
  absl::Status ReadOutputs();
  inference::ModelInferRequest MakeRequest(const PlannedRequest& planned) const;

  std::vector<std::unique_ptr<inference::GRPCInferenceService::Stub>> stubs_;  // one per channel
  bool returns_text_ = false;  // the model has text_output; quintet.v1 returns it by default
};

absl::Status KserveTarget::ReadOutputs() {
  grpc::ClientContext context;
  SetDeadline(&context);
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse response;
  request.set_name(options_.model);
  const grpc::Status status = stubs_[0]->ModelMetadata(&context, request, &response);
  if (!status.ok()) return StatusOfServer(options_.address, status);
  for (const auto& output : response.outputs()) returns_text_ |= output.name() == "text_output";
  return absl::OkStatus();
}

inference::ModelInferRequest KserveTarget::MakeRequest(const PlannedRequest& planned) const {
  inference::ModelInferRequest request;
  request.set_model_name(options_.model);
  auto* input = request.add_inputs();
  input->add_shape(1);
  std::string* contents = request.add_raw_input_contents();
  const auto append = [contents](uint32_t value) {
    contents->append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  if (planned.ids.empty()) {
    input->set_name("text_input");
    input->set_datatype("BYTES");
    input->add_shape(1);
    append(static_cast<uint32_t>(planned.text.size()));
    contents->append(planned.text);
  } else {
    input->set_name("input_ids");
    input->set_datatype("INT32");
    input->add_shape(static_cast<int64_t>(planned.ids.size()));
    for (const auto id : planned.ids) append(static_cast<uint32_t>(id));
  }
  request.add_outputs()->set_name("output_ids");
  if (returns_text_) request.add_outputs()->set_name("text_output");
  const auto set = [&request](const char* name) {
    auto* const parameter = request.add_parameters();
    parameter->set_key(name);
    return parameter->mutable_value();
  };
  set("num_beams")->set_int64_param(planned.num_beams);
  // Levels of Triton: 1 is the highest.
  set("priority")->set_int64_param(4 - static_cast<int64_t>(options_.priority));
  if (!planned.adapter.empty()) set("adapter")->set_string_param(planned.adapter);
  if (options_.stream) set("stream")->set_bool_param(true);
  if (planned.output_tokens > 0) {
    set("max_new_tokens")->set_int64_param(planned.output_tokens);
    set("ignore_eos")->set_bool_param(true);
  }
  return request;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerTarget>> ConnectKserve(const ServerTargetOptions& options) {
  return KserveTarget::Connect(options);
}

}  // namespace quintet
