#include "server/service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/answers.h"
#include "server/errors.h"
#include "server/stream_call.h"

namespace quintet {
namespace {

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
  void OnDone() override { Close(); }
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

// RPCs that ask nothing of the engine. Answer writes the response in Prepare's place, so that its
// time counts as tokenizing.
template <typename RequestProto, typename ResponseProto>
class UnaryCallWithoutEngine : public UnaryCall<RequestProto, ResponseProto> {
 public:
  using UnaryCall<RequestProto, ResponseProto>::UnaryCall;

 private:
  virtual absl::Status Answer() = 0;
  absl::StatusOr<std::vector<Request>> Prepare() final {
    if (absl::Status status = Answer(); !status.ok()) return status;
    return std::vector<Request>();
  }
  absl::Status Respond(std::vector<Result> results) final {
    if constexpr (requires(ResponseProto r) { r.mutable_info(); }) {
      this->FillInfo(results, this->response_.mutable_info());
    }
    return absl::OkStatus();
  }
};

class TokenizeCall final
    : public UnaryCallWithoutEngine<v1::TokenizeRequest, v1::TokenizeResponse> {
 public:
  using UnaryCallWithoutEngine::UnaryCallWithoutEngine;

 private:
  absl::Status Answer() override {
    return WriteTokens(request_, host(), input_limits(), &response_);
  }
};

class DetokenizeCall final
    : public UnaryCallWithoutEngine<v1::DetokenizeRequest, v1::DetokenizeResponse> {
 public:
  using UnaryCallWithoutEngine::UnaryCallWithoutEngine;

 private:
  absl::Status Answer() override { return WriteText(request_, host(), &response_); }
};

class GetModelInfoCall final
    : public UnaryCallWithoutEngine<v1::GetModelInfoRequest, v1::GetModelInfoResponse> {
 public:
  using UnaryCallWithoutEngine::UnaryCallWithoutEngine;

 private:
  absl::Status Answer() override {
    WriteModelInfo(host(), context(), &response_);
    return absl::OkStatus();
  }
};

// gRPC takes the reactor; it deletes itself in OnDone.
template <typename Reactor>
Reactor* Started(Reactor* call, const v1::CallOptions& options, const CallSize& size) {
  call->Start(options, size);
  return call;
}

}  // namespace

grpc::ServerUnaryReactor* InferenceService::Generate(grpc::CallbackServerContext* rpc,
                                                     const v1::GenerateRequest* request,
                                                     v1::GenerateResponse* response) {
  return Started(new GenerateCall(context_, rpc, "Generate", request, response), request->call(),
                 {1, BytesOf(request->input())});
}

grpc::ServerWriteReactor<v1::GenerateStreamResponse>* InferenceService::GenerateStream(
    grpc::CallbackServerContext* rpc, const v1::GenerateRequest* request) {
  return Started(new GenerateStreamCall(context_, rpc, request), request->call(),
                 {1, BytesOf(request->input())});
}

grpc::ServerUnaryReactor* InferenceService::Encode(grpc::CallbackServerContext* rpc,
                                                   const v1::EncodeRequest* request,
                                                   v1::EncodeResponse* response) {
  return Started(new EncodeCall(context_, rpc, "Encode", request, response), request->call(),
                 {std::min(request->inputs_size(), kMaxInputs), BytesOf(request->inputs())});
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferenceService::EncodeStream(
    grpc::CallbackServerContext* rpc) {
  return new EncodeStreamReactor(context_, rpc);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* rpc,
                                                  const v1::ScoreRequest* request,
                                                  v1::ScoreResponse* response) {
  return Started(new ScoreCall(context_, rpc, "Score", request, response), request->call(),
                 {1, BytesOf(request->input()) + BytesOf(request->targets())});
}

grpc::ServerUnaryReactor* InferenceService::Classify(grpc::CallbackServerContext* rpc,
                                                     const v1::ClassifyRequest* request,
                                                     v1::ClassifyResponse* response) {
  return Started(new ClassifyCall(context_, rpc, "Classify", request, response), request->call(),
                 {std::min(request->inputs_size(), kMaxInputs),
                  BytesOf(request->inputs()) + BytesOf(request->pairs())});
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* rpc,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return Started(new TokenizeCall(context_, rpc, "Tokenize", request, response), request->call(),
                 {1, static_cast<int64_t>(request->text().size())});
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* rpc,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return Started(new DetokenizeCall(context_, rpc, "Detokenize", request, response),
                 request->call(), {1, int64_t{3} * request->token_ids_size()});
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(grpc::CallbackServerContext* rpc,
                                                         const v1::GetModelInfoRequest* request,
                                                         v1::GetModelInfoResponse* response) {
  v1::CallOptions options;
  options.set_model(request->model());
  return Started(new GetModelInfoCall(context_, rpc, "GetModelInfo", request, response), options,
                 {0, 0});
}

}  // namespace quintet
