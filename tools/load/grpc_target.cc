#include "tools/load/grpc_target.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

std::shared_ptr<grpc::Channel> OpenChannel(const GrpcTarget::Options& options) {
  grpc::ChannelArguments arguments;
  // Give each channel its own connection. By default all channels to the same address share one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  if (options.attempts > 1) {
    arguments.SetServiceConfigJSON(absl::StrCat(
        R"({"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":)", options.attempts,
        R"(,"initialBackoff":"0.1s","maxBackoff":"2s","backoffMultiplier":2,)",
        R"("retryableStatusCodes":["UNAVAILABLE"]}}]})"));
  }
  return grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
}

std::chrono::system_clock::time_point Deadline(double seconds) {
  return std::chrono::system_clock::now() +
         std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
}

RequestEnd EndOf(const grpc::Status& status, int64_t input_tokens, int64_t output_tokens) {
  RequestEnd end;
  end.code = static_cast<absl::StatusCode>(status.error_code());
  end.input_tokens = input_tokens;
  end.output_tokens = output_tokens;
  google::rpc::Status details;
  if (status.ok() || !details.ParseFromString(status.error_details())) return end;
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) end.reason = info.reason();
    end.retry_info = end.retry_info || detail.Is<google::rpc::RetryInfo>();
  }
  return end;
}

RequestEnd EndOf(const grpc::Status& status, const v1::GenerateResponse& response) {
  const v1::Usage& usage = response.info().usage();
  return EndOf(status, usage.input_tokens(), usage.output_tokens());
}

RequestEnd EndOf(const grpc::Status& status, const inference::ModelInferResponse& response) {
  int64_t input_tokens = 0, output_tokens = 0;
  for (const auto& parameter : response.parameters()) {
    if (parameter.key() == "input_tokens") input_tokens = parameter.value().int64_param();
    if (parameter.key() == "output_tokens") output_tokens = parameter.value().int64_param();
  }
  return EndOf(status, input_tokens, output_tokens);
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

}  // namespace

// One gRPC call. Its address is the tag of its operations in the completion queue. At most one
// operation of a call is in flight at a time.
class GrpcTarget::Call {
 public:
  explicit Call(uint64_t id) : id_(id) {}
  virtual ~Call() = default;
  // Handles the completion of the operation in flight and starts the next one. Returns false if the
  // call has ended and can be deleted.
  virtual bool Proceed(bool ok, LoadObserver* observer) = 0;

  grpc::ClientContext context;

 protected:
  const uint64_t id_;
  grpc::Status status_;
};

class GrpcTarget::UnaryCall final : public Call {
 public:
  using Call::Call;
  void Start(v1::Inference::Stub* stub, const v1::GenerateRequest& request,
             grpc::CompletionQueue* queue) {
    reader_ = stub->PrepareAsyncGenerate(&context, request, queue);
    reader_->StartCall();
    reader_->Finish(&response_, &status_, static_cast<Call*>(this));
  }
  bool Proceed(bool, LoadObserver* observer) override {
    observer->OnEnd(id_, EndOf(status_, response_), MonotonicMicros());
    return false;
  }

 private:
  v1::GenerateResponse response_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::GenerateResponse>> reader_;
};

class GrpcTarget::StreamCall final : public Call {
 public:
  using Call::Call;
  void Start(v1::Inference::Stub* stub, const v1::GenerateRequest& request,
             grpc::CompletionQueue* queue) {
    reader_ = stub->PrepareAsyncGenerateStream(&context, request, queue);
    reader_->StartCall(static_cast<Call*>(this));
  }
  bool Proceed(bool ok, LoadObserver* observer) override {
    if (finishing_) {
      observer->OnEnd(id_, EndOf(status_, response_), MonotonicMicros());
      return false;
    }
    if (ok && started_) TakeMessage(observer);
    started_ = true;
    finishing_ = !ok;
    if (ok) {
      reader_->Read(&message_, static_cast<Call*>(this));
    } else {
      reader_->Finish(&status_, static_cast<Call*>(this));
    }
    return true;
  }

 private:
  void TakeMessage(LoadObserver* observer) {
    if (message_.has_complete()) {
      response_ = std::move(*message_.mutable_complete());
    } else if (message_.chunk().token_ids_size() > 0) {
      observer->OnTokens(id_, message_.chunk().token_ids_size(), MonotonicMicros());
    }
  }

  v1::GenerateResponse response_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateStreamResponse>> reader_;
  v1::GenerateStreamResponse message_;
  bool started_ = false, finishing_ = false;
};

class GrpcTarget::KserveCall final : public Call {
 public:
  using Call::Call;
  void Start(inference::GRPCInferenceService::Stub* stub,
             const inference::ModelInferRequest& request, grpc::CompletionQueue* queue) {
    reader_ = stub->PrepareAsyncModelInfer(&context, request, queue);
    reader_->StartCall();
    reader_->Finish(&response_, &status_, static_cast<Call*>(this));
  }
  bool Proceed(bool, LoadObserver* observer) override {
    observer->OnEnd(id_, EndOf(status_, response_), MonotonicMicros());
    return false;
  }

 private:
  inference::ModelInferResponse response_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<inference::ModelInferResponse>> reader_;
};

// A ModelStreamInfer with one request.
class GrpcTarget::KserveStreamCall final : public Call {
 public:
  using Call::Call;
  void Start(inference::GRPCInferenceService::Stub* stub,
             const inference::ModelInferRequest& request, grpc::CompletionQueue* queue) {
    request_ = request;
    context.AddMetadata("triton_grpc_error", "true");  // errors as statuses
    stream_ = stub->PrepareAsyncModelStreamInfer(&context, queue);
    stream_->StartCall(static_cast<Call*>(this));
  }
  bool Proceed(bool ok, LoadObserver* observer) override {
    switch (state_) {
      case State::kStarting:
        state_ = ok ? State::kWriting : State::kFinishing;
        if (!ok) break;
        stream_->WriteLast(request_, grpc::WriteOptions(), static_cast<Call*>(this));
        return true;
      case State::kReading:
        if (ok) TakeMessage(observer);
        [[fallthrough]];
      case State::kWriting:
        state_ = ok ? State::kReading : State::kFinishing;
        if (!ok) break;
        stream_->Read(&message_, static_cast<Call*>(this));
        return true;
      case State::kFinishing:
        observer->OnEnd(id_, EndOf(status_, response_), MonotonicMicros());
        return false;
    }
    stream_->Finish(&status_, static_cast<Call*>(this));
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

GrpcTarget::GrpcTarget(const Options& options) : options_(options) {
  for (int i = 0; i < options.channels; ++i) {
    const std::shared_ptr<grpc::Channel> channel = OpenChannel(options);
    stubs_.push_back(
        {v1::Inference::NewStub(channel), inference::GRPCInferenceService::NewStub(channel)});
  }
}

GrpcTarget::~GrpcTarget() {
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) delete static_cast<Call*>(tag);
}

absl::StatusOr<std::unique_ptr<GrpcTarget>> GrpcTarget::Connect(const Options& options) {
  std::unique_ptr<GrpcTarget> target(new GrpcTarget(options));
  // Make one call of GetModelInfo on every channel, so that all connections are open before the
  // load begins.
  for (const Stubs& stubs : target->stubs_) {
    grpc::ClientContext context;
    const double connect_s = std::min(options.timeout_s, 10.0);
    context.set_deadline(Deadline(connect_s));
    context.set_wait_for_ready(true);
    v1::GetModelInfoRequest request;
    request.set_model(options.model);
    const grpc::Status status = stubs.quintet->GetModelInfo(&context, request, &target->info_);
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(absl::StrCat("--target: no server answered at ",
                                                      options.address, " within ", connect_s,
                                                      " s: ", status.error_message()));
    }
    if (!status.ok()) {
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          absl::StrCat(options.address, ": ", status.error_message()));
    }
  }
  QT_RETURN_IF_ERROR(target->ReadOutputs());
  return target;
}

absl::Status GrpcTarget::ReadOutputs() {
  if (!options_.kserve) return absl::OkStatus();
  grpc::ClientContext context;
  context.set_deadline(Deadline(options_.timeout_s));
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse response;
  request.set_name(options_.model);
  const grpc::Status status = stubs_[0].kserve->ModelMetadata(&context, request, &response);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat(options_.address, ": ", status.error_message()));
  }
  for (const auto& output : response.outputs()) returns_text_ |= output.name() == "text_output";
  return absl::OkStatus();
}

v1::GenerateRequest GrpcTarget::MakeRequest(const PlannedRequest& planned) const {
  v1::GenerateRequest request;
  request.mutable_call()->set_model(options_.model);
  request.mutable_call()->set_priority(options_.priority);
  if (planned.ids.empty()) {
    request.mutable_input()->set_text(planned.text);
  } else {
    request.mutable_input()->mutable_token_ids()->mutable_ids()->Add(planned.ids.begin(),
                                                                     planned.ids.end());
  }
  v1::DecodingOptions& decoding = *request.mutable_decoding();
  decoding.set_num_beams(planned.num_beams);
  if (planned.output_tokens > 0) {
    decoding.set_max_new_tokens(planned.output_tokens);
    decoding.set_ignore_eos(true);
  }
  return request;
}

inference::ModelInferRequest GrpcTarget::MakeKserveRequest(const PlannedRequest& planned) const {
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
  if (options_.stream) set("stream")->set_bool_param(true);
  if (planned.output_tokens > 0) {
    set("max_new_tokens")->set_int64_param(planned.output_tokens);
    set("ignore_eos")->set_bool_param(true);
  }
  return request;
}

template <typename CallType, typename Stub, typename Request>
void GrpcTarget::Start(uint64_t id, Stub* stub, const Request& request) {
  auto* call = new CallType(id);
  call->context.set_deadline(Deadline(options_.timeout_s));
  call->Start(stub, request, &queue_);
}

void GrpcTarget::Send(uint64_t id, const PlannedRequest& planned) {
  const Stubs& stubs = stubs_[id % stubs_.size()];
  if (options_.kserve) {
    const inference::ModelInferRequest request = MakeKserveRequest(planned);
    if (options_.stream) return Start<KserveStreamCall>(id, stubs.kserve.get(), request);
    return Start<KserveCall>(id, stubs.kserve.get(), request);
  }
  const v1::GenerateRequest request = MakeRequest(planned);
  if (options_.stream) return Start<StreamCall>(id, stubs.quintet.get(), request);
  Start<UnaryCall>(id, stubs.quintet.get(), request);
}

void GrpcTarget::Poll(int64_t timeout_us, LoadObserver* observer) {
  void* tag = nullptr;
  bool ok = false;
  const auto deadline = std::chrono::system_clock::now() + std::chrono::microseconds(timeout_us);
  if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) return;
  auto* call = static_cast<Call*>(tag);
  if (!call->Proceed(ok, observer)) delete call;
}

}  // namespace quintet
