#include "tools/load/grpc_target.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

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

RequestEnd EndOf(const grpc::Status& status, const v1::GenerateResponse& response) {
  RequestEnd end;
  end.code = static_cast<absl::StatusCode>(status.error_code());
  end.input_tokens = response.info().usage().input_tokens();
  end.output_tokens = response.info().usage().output_tokens();
  google::rpc::Status details;
  if (status.ok() || !details.ParseFromString(status.error_details())) return end;
  for (const google::protobuf::Any& detail : details.details()) {
    google::rpc::ErrorInfo info;
    if (detail.UnpackTo(&info)) end.reason = info.reason();
    end.retry_info = end.retry_info || detail.Is<google::rpc::RetryInfo>();
  }
  return end;
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
  v1::GenerateResponse response_;
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

  std::unique_ptr<grpc::ClientAsyncReader<v1::GenerateStreamResponse>> reader_;
  v1::GenerateStreamResponse message_;
  bool started_ = false, finishing_ = false;
};

GrpcTarget::GrpcTarget(const Options& options) : options_(options) {
  for (int i = 0; i < options.channels; ++i) {
    stubs_.push_back(v1::Inference::NewStub(OpenChannel(options)));
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
  for (const std::unique_ptr<v1::Inference::Stub>& stub : target->stubs_) {
    grpc::ClientContext context;
    const double connect_s = std::min(options.timeout_s, 10.0);
    context.set_deadline(Deadline(connect_s));
    context.set_wait_for_ready(true);
    v1::GetModelInfoRequest request;
    request.set_model(options.model);
    const grpc::Status status = stub->GetModelInfo(&context, request, &target->info_);
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
  return target;
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

void GrpcTarget::Send(uint64_t id, const PlannedRequest& planned) {
  v1::Inference::Stub* stub = stubs_[id % stubs_.size()].get();
  const v1::GenerateRequest request = MakeRequest(planned);
  // Send allocates the call, which is its own tag in the completion queue. Poll gets the call back
  // from the queue and deletes it when it has ended.
  if (options_.stream) {
    auto* call = new StreamCall(id);
    call->context.set_deadline(Deadline(options_.timeout_s));
    call->Start(stub, request, &queue_);
  } else {
    auto* call = new UnaryCall(id);
    call->context.set_deadline(Deadline(options_.timeout_s));
    call->Start(stub, request, &queue_);
  }
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
