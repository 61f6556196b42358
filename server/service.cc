#include "server/service.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "server/answers.h"
#include "server/errors.h"
#include "server/stream_call.h"

namespace quintet {
namespace {

constexpr int kMaxInputs = 64;
constexpr int kMaxTargets = 64;
constexpr uint32_t kMaxTopLogProbs = 20;

int64_t InputBytes(const v1::Input& input) {
  return input.content_case() == v1::Input::kText ? static_cast<int64_t>(input.text().size())
                                                  : int64_t{3} * input.token_ids().ids_size();
}

template <typename Inputs>
int64_t TotalBytes(const Inputs& inputs) {
  int64_t bytes = 0;
  for (const v1::Input& input : inputs) bytes += InputBytes(input);
  return bytes;
}

absl::Status CheckCount(const char* field, int count, int limit) {
  if (count >= 1 && count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must hold 1 to ", limit, ", got ", count));
}

// A unary RPC as a Call. Request and response live as long as the RPC.
template <typename RequestProto, typename ResponseProto>
class UnaryCall : public grpc::ServerUnaryReactor, public Call {
 public:
  UnaryCall(CallContext* context, grpc::CallbackServerContext* rpc, const char* name,
            const RequestProto* request, ResponseProto* response)
      : Call(context, rpc, name), rpc_(rpc), request_(*request), response_(*response) {}
  void OnDone() override { delete this; }
  void OnCancel() override { Cancelled(); }

 protected:
  void FinishRpc(const RpcOutcome& outcome) override {
    AddPushback(outcome, rpc_);
    grpc::ServerUnaryReactor::Finish(outcome.status);
  }

  grpc::CallbackServerContext* const rpc_;
  const RequestProto& request_;
  ResponseProto& response_;
};

class GenerateCall final : public UnaryCall<v1::GenerateRequest, v1::GenerateResponse> {
 public:
  using UnaryCall::UnaryCall;

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override {
    return GenerateRequests(request_, host(), input_limits(), /*stream=*/false);
  }
  absl::Status Respond(std::vector<Result> results) override {
    WriteGenerate(request_, results[0], &response_);
    FillInfo(results, response_.mutable_info());
    return absl::OkStatus();
  }
};

class EncodeCall final : public UnaryCall<v1::EncodeRequest, v1::EncodeResponse> {
 public:
  using UnaryCall::UnaryCall;

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override {
    if (absl::Status s = CheckCount("inputs", request_.inputs_size(), kMaxInputs); !s.ok())
      return s;
    std::vector<Request> requests;
    for (int i = 0; i < request_.inputs_size(); ++i) {
      absl::StatusOr<Request> one =
          EncodeRequestOf(request_.inputs(i), request_.options(), request_.call(), host(),
                          input_limits(), absl::StrCat("inputs[", i, "]"));
      if (!one.ok()) return one.status();
      requests.push_back(*std::move(one));
    }
    return requests;
  }
  absl::Status Respond(std::vector<Result> results) override {
    for (const Result& result : results) {
      WriteEmbedding(result, request_.options().vector_type(), response_.add_embeddings());
    }
    FillInfo(results, response_.mutable_info());
    return absl::OkStatus();
  }
};

class ScoreCall final : public UnaryCall<v1::ScoreRequest, v1::ScoreResponse> {
 public:
  using UnaryCall::UnaryCall;

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override {
    if (absl::Status s = CheckCount("targets", request_.targets_size(), kMaxTargets); !s.ok())
      return s;
    if (request_.top_logprobs() > kMaxTopLogProbs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "top_logprobs: must be at most ", kMaxTopLogProbs, ", got ", request_.top_logprobs()));
    }
    return ScoreRequests(request_, host(), input_limits());
  }
  absl::Status Respond(std::vector<Result> results) override {
    WriteScores(results[0], &response_);
    FillInfo(results, response_.mutable_info());
    return absl::OkStatus();
  }
};

class ClassifyCall final : public UnaryCall<v1::ClassifyRequest, v1::ClassifyResponse> {
 public:
  using UnaryCall::UnaryCall;

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override {
    if (absl::Status s = CheckCount("inputs", request_.inputs_size(), kMaxInputs); !s.ok())
      return s;
    return answers_.Prepare(request_, host(), input_limits());
  }
  absl::Status Respond(std::vector<Result> results) override {
    answers_.Write(request_, host(), results, &response_);
    FillInfo(results, response_.mutable_info());
    return absl::OkStatus();
  }
  ClassifyAnswers answers_;
};

// An RPC that needs no engine: answered on the executor.
template <typename Body>
grpc::ServerUnaryReactor* Immediate(CallContext* context, grpc::CallbackServerContext* rpc,
                                    const std::string& model, const std::string& request_id,
                                    Body body) {
  grpc::ServerUnaryReactor* reactor = rpc->DefaultReactor();
  const auto finish = [=](const absl::Status& status) {
    const RpcOutcome outcome = ToRpcOutcome(status, request_id, absl::Milliseconds(200));
    AddPushback(outcome, rpc);
    reactor->Finish(outcome.status);
  };
  if (absl::Status status = context->Authorize(*rpc); !status.ok()) {
    finish(status);
    return reactor;
  }
  absl::StatusOr<ModelHost*> host = context->Find(model);
  if (!host.ok()) {
    finish(host.status());
    return reactor;
  }
  context->executor->Post([finish, body, host = *host] { finish(body(host)); });
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* rpc,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  auto* call = new GenerateCall(context_, rpc, "Generate", request, response);
  call->Start(request->call(), 1, InputBytes(request->input()));
  return call;
}

grpc::ServerWriteReactor<v1::GenerateStreamResponse>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* rpc, const v1::GenerateRequest* request) {
  auto* call = new GenerateStreamCall(context_, rpc, request);
  call->Start(request->call(), 1, InputBytes(request->input()));
  return call;
}

grpc::ServerUnaryReactor* InferenceService::Encode(grpc::CallbackServerContext* rpc,
                                                   const v1::EncodeRequest* request,
                                                   v1::EncodeResponse* response) {
  auto* call = new EncodeCall(context_, rpc, "Encode", request, response);
  call->Start(request->call(), std::max(request->inputs_size(), 1), TotalBytes(request->inputs()));
  return call;
}

grpc::ServerBidiReactor<v1::EncodeStreamRequest, v1::EncodeStreamResponse>*
InferenceService::EncodeStream(grpc::CallbackServerContext* rpc) {
  return new EncodeStreamReactor(context_, rpc);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* rpc,
                                                  const v1::ScoreRequest* request,
                                                  v1::ScoreResponse* response) {
  auto* call = new ScoreCall(context_, rpc, "Score", request, response);
  call->Start(request->call(), 1, InputBytes(request->input()) + TotalBytes(request->targets()));
  return call;
}

grpc::ServerUnaryReactor* InferenceService::Classify(grpc::CallbackServerContext* rpc,
                                                     const v1::ClassifyRequest* request,
                                                     v1::ClassifyResponse* response) {
  auto* call = new ClassifyCall(context_, rpc, "Classify", request, response);
  call->Start(request->call(), std::max(request->inputs_size(), 1),
              TotalBytes(request->inputs()) + TotalBytes(request->pairs()));
  return call;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* rpc,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return Immediate(context_, rpc, request->call().model(), request->call().request_id(),
                   [=, this](ModelHost* host) {
                     return WriteTokens(*request, *host, context_->max_text_bytes, response);
                   });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* rpc,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return Immediate(context_, rpc, request->call().model(), request->call().request_id(),
                   [=](ModelHost* host) { return WriteText(*request, *host, response); });
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(grpc::CallbackServerContext* rpc,
                                                         const v1::GetModelInfoRequest* request,
                                                         v1::GetModelInfoResponse* response) {
  return Immediate(context_, rpc, request->model(), "", [=, this](ModelHost* host) {
    WriteModelInfo(*host, *context_, response);
    return absl::OkStatus();
  });
}

}  // namespace quintet
