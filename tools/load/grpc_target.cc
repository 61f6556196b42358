#include "tools/load/grpc_target.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "kernels/base/status_macros.h"
#include "kernels/runtime/cores.h"
#include "quintet/v1/inference.grpc.pb.h"

namespace quintet {
namespace {

std::shared_ptr<grpc::Channel> OpenChannel(const ServerTargetOptions& options) {
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
  const v1::Usage& usage = response.info().usage();
  return GrpcEnd(status, usage.input_tokens(), usage.output_tokens());
}

ServerInfo InfoOf(const v1::GetModelInfoResponse& info) {
  const v1::Limits& limits = info.limits();
  return {{{"model", info.model()},
           {"version", info.version()},
           {"family", info.family()},
           {"dtype", info.dtype()},
           {"parameters", info.parameters()},
           {"max_queue_requests", limits.max_queue_requests()},
           {"max_queue_tokens", limits.max_queue_tokens()},
           {"max_running_sequences", limits.max_running_sequences()},
           {"encoder_cache_bytes", limits.encoder_cache_bytes()}},
          info.vocab()};
}

using GenerateCall = UnaryGrpcCall<v1::GenerateResponse, EndOf>;

class StreamCall final : public GrpcCall {
 public:
  using GrpcCall::GrpcCall;
  void Start(v1::Inference::Stub* stub, const v1::GenerateRequest& request,
             grpc::CompletionQueue* queue) {
    reader_ = stub->PrepareAsyncGenerateStream(&context, request, queue);
    reader_->StartCall(static_cast<GrpcCall*>(this));
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
      reader_->Read(&message_, static_cast<GrpcCall*>(this));
    } else {
      reader_->Finish(&status_, static_cast<GrpcCall*>(this));
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

class QuintetTarget final : public GrpcTarget {
 public:
  static absl::StatusOr<std::unique_ptr<ServerTarget>> Connect(const ServerTargetOptions& options) {
    std::unique_ptr<QuintetTarget> target(new QuintetTarget(options));
    QT_RETURN_IF_ERROR(target->ReadInfo());
    return target;
  }

  void Send(uint64_t id, const PlannedRequest& planned) override {
    v1::Inference::Stub* const stub = stubs_[id % stubs_.size()].get();
    const v1::GenerateRequest request = MakeRequest(planned);
    if (options_.stream) return Start<StreamCall>(id, stub, request);
    Start<GenerateCall>(id, stub, &v1::Inference::Stub::PrepareAsyncGenerate, request);
  }

 private:
  explicit QuintetTarget(const ServerTargetOptions& options) : GrpcTarget(options) {
    for (const auto& channel : channels_) stubs_.push_back(v1::Inference::NewStub(channel));
  }
  v1::GenerateRequest MakeRequest(const PlannedRequest& planned) const;

  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;  // one for each channel
};

v1::GenerateRequest QuintetTarget::MakeRequest(const PlannedRequest& planned) const {
  v1::GenerateRequest request;
  request.mutable_call()->set_model(options_.model);
  request.mutable_call()->set_priority(static_cast<v1::Priority>(options_.priority));
  request.mutable_call()->set_adapter(planned.adapter);
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

}  // namespace

GrpcTarget::GrpcTarget(const ServerTargetOptions& options) : options_(options) {
  for (int i = 0; i < options.channels; ++i) channels_.push_back(OpenChannel(options));
  // The other cores are left to gRPC and to the thread that sends the requests.
  const int readers = std::clamp(AvailableCores() / 2, 1, options.channels);
  for (int i = 0; i < readers; ++i) {
    Reader* const reader = readers_.emplace_back(std::make_unique<Reader>()).get();
    reader->thread = std::thread([this, queue = &reader->queue] { Read(queue); });
  }
}

GrpcTarget::~GrpcTarget() {
  ending_ = true;  // calls must not start operations on a queue that is shut down
  for (const auto& reader : readers_) {
    reader->queue.Shutdown();
    reader->thread.join();
  }
}

// Handles the events of `queue` until it is shut down.
void GrpcTarget::Read(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
    auto* call = static_cast<GrpcCall*>(tag);
    if (ending_ || !call->Proceed(ok, &events_)) delete call;
  }
}

absl::Status GrpcTarget::ReadInfo() {
  v1::GetModelInfoResponse info;
  // Make one call of GetModelInfo on every channel, so that all connections are open before the
  // load begins.
  for (const auto& channel : channels_) {
    grpc::ClientContext context;
    const double connect_s = std::min(options_.timeout_s, 10.0);
    context.set_deadline(Deadline(connect_s));
    context.set_wait_for_ready(true);
    v1::GetModelInfoRequest request;
    request.set_model(options_.model);
    const grpc::Status status =
        v1::Inference::NewStub(channel)->GetModelInfo(&context, request, &info);
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(absl::StrCat("--target: no server answered at ",
                                                      options_.address, " within ", connect_s,
                                                      " s: ", status.error_message()));
    }
    if (!status.ok()) return StatusOfServer(options_.address, status);
  }
  info_ = InfoOf(info);
  return absl::OkStatus();
}

void GrpcTarget::SetDeadline(grpc::ClientContext* context) const {
  context->set_deadline(Deadline(options_.timeout_s));
}

void GrpcTarget::Poll(int64_t timeout_us, LoadObserver* observer) {
  events_.PassTo(observer, timeout_us);
}

RequestEnd GrpcEnd(const grpc::Status& status, int64_t input_tokens, int64_t output_tokens) {
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

absl::Status StatusOfServer(const std::string& address, const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(address, ": ", status.error_message()));
}

absl::StatusOr<std::unique_ptr<ServerTarget>> ConnectGrpc(const ServerTargetOptions& options) {
  return QuintetTarget::Connect(options);
}

}  // namespace quintet
