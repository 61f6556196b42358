#include "server/methods.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/encode_stream.h"
#include "server/generate_stream.h"
#include "server/handlers.h"
#include "server/model_info.h"
#include "server/unary_call.h"

namespace quintet {
namespace {

absl::Status CheckCount(const char* field, int count, int limit) {
  if (count >= 1 && count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": must hold 1 to ", limit, ", got ", count));
}

class GenerateCall final : public UnaryCall<v1::GenerateRequest, v1::GenerateResponse> {
 public:
  GenerateCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "Generate") {}

 private:
  CallSize Size(const v1::GenerateRequest& request) const override {
    return {1, SizeOf(request.input())};
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    return GenerateRequests(*request_, host(), input_limits(), /*stream=*/false);
  }
  void Write(const std::vector<Result>& results, v1::GenerateResponse* response) override {
    WriteGenerate(*request_, results[0], response);
  }
};

class EncodeCall final : public UnaryCall<v1::EncodeRequest, v1::EncodeResponse> {
 public:
  EncodeCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "Encode") {}

 private:
  CallSize Size(const v1::EncodeRequest& request) const override {
    return {std::min(request.inputs_size(), kMaxInputs), SizeOf(request.inputs())};
  }
  int64_t ResponseBound() override {
    return EncodeResponseBound(request_->inputs(), request_->options(), host(), input_limits());
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    QT_RETURN_IF_ERROR(CheckCount("inputs", request_->inputs_size(), kMaxInputs));
    std::vector<Request> requests;
    for (int i = 0; i < request_->inputs_size(); ++i) {
      QT_ASSIGN_OR_RETURN(
          Request one, EncodeRequestOf(request_->inputs(i), request_->options(), request_->call(),
                                       host(), input_limits(), absl::StrCat("inputs[", i, "]")));
      requests.push_back(std::move(one));
    }
    return requests;
  }
  void Write(const std::vector<Result>& results, v1::EncodeResponse* response) override {
    for (const Result& result : results) {
      WriteEmbedding(result, request_->options().vector_type(), response->add_embeddings());
    }
  }
};

class ScoreCall final : public UnaryCall<v1::ScoreRequest, v1::ScoreResponse> {
 public:
  ScoreCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "Score") {}

 private:
  CallSize Size(const v1::ScoreRequest& request) const override {
    return {1, SizeOf(request.input()) + SizeOf(request.targets())};
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    QT_RETURN_IF_ERROR(CheckCount("targets", request_->targets_size(), kMaxTargets));
    return ScoreRequests(*request_, host(), input_limits());
  }
  void Write(const std::vector<Result>& results, v1::ScoreResponse* response) override {
    WriteScores(results[0], response);
  }
};

class ClassifyCall final : public UnaryCall<v1::ClassifyRequest, v1::ClassifyResponse> {
 public:
  ClassifyCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "Classify") {}

 private:
  CallSize Size(const v1::ClassifyRequest& request) const override {
    return {std::min(request.inputs_size(), kMaxInputs),
            SizeOf(request.inputs()) + SizeOf(request.pairs())};
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    QT_RETURN_IF_ERROR(CheckCount("inputs", request_->inputs_size(), kMaxInputs));
    return answers_.Prepare(*request_, host(), input_limits());
  }
  void Write(const std::vector<Result>& results, v1::ClassifyResponse* response) override {
    answers_.Write(*request_, host(), results, response);
  }

  ClassifyHandler answers_;
};

// The methods below do not use the engine. They compute the response in Prepare, so that its time
// counts as tokenization.

class TokenizeCall final : public UnaryCall<v1::TokenizeRequest, v1::TokenizeResponse> {
 public:
  TokenizeCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "Tokenize") {}

 private:
  CallSize Size(const v1::TokenizeRequest& request) const override {
    const int64_t bytes = static_cast<int64_t>(request.text().size());
    return {1, {bytes, bytes}};
  }
  int64_t ResponseBound() override { return TokenizeResponseBound(request_->text()); }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    const auto reserve = [this](int64_t bytes) { return ReserveMemory(bytes); };
    QT_RETURN_IF_ERROR(WriteTokens(*request_, host(), input_limits(), reserve, &response_));
    return std::vector<Request>();
  }
  void Write(const std::vector<Result>&, v1::TokenizeResponse* response) override {
    response->Swap(&response_);
  }

  v1::TokenizeResponse response_;
};

class DetokenizeCall final : public UnaryCall<v1::DetokenizeRequest, v1::DetokenizeResponse> {
 public:
  DetokenizeCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "Detokenize") {}

 private:
  CallSize Size(const v1::DetokenizeRequest& request) const override {
    return {1, {int64_t{3} * request.token_ids_size(), 0}};
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    const auto reserve = [this](int64_t bytes) { return ReserveMemory(bytes); };
    QT_RETURN_IF_ERROR(WriteText(*request_, host(), reserve, &response_));
    return std::vector<Request>();
  }
  void Write(const std::vector<Result>&, v1::DetokenizeResponse* response) override {
    response->Swap(&response_);
  }

  v1::DetokenizeResponse response_;
};

class GetModelInfoCall final : public UnaryCall<v1::GetModelInfoRequest, v1::GetModelInfoResponse> {
 public:
  GetModelInfoCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "GetModelInfo") {}

 private:
  CallSize Size(const v1::GetModelInfoRequest&) const override { return {0, {}}; }
  absl::StatusOr<std::vector<Request>> Prepare() override { return std::vector<Request>(); }
  void Write(const std::vector<Result>&, v1::GetModelInfoResponse* response) override {
    WriteModelInfo(host(), context(), response);
  }
};

class ListModelsCall final : public UnaryCall<v1::ListModelsRequest, v1::ListModelsResponse> {
 public:
  ListModelsCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : UnaryCall(context, std::move(rpc), "ListModels") {}

 private:
  bool needs_model() const override { return false; }
  int64_t ResponseBound() override {
    constexpr int64_t kBytesPerModel = 1024;  // the message and its serialized form
    return kBytesPerModel * static_cast<int64_t>(context().models->size());
  }
  CallSize Size(const v1::ListModelsRequest&) const override { return {0, {}}; }
  absl::StatusOr<std::vector<Request>> Prepare() override { return std::vector<Request>(); }
  void Write(const std::vector<Result>&, v1::ListModelsResponse* response) override {
    for (const auto& model : context().models->models()) {
      WriteServedModel(*model, response->add_models());
    }
  }
};

template <typename Handler>
Method MethodOf(const char* name, CallContext* context) {
  Method method;
  method.path = absl::StrCat("/quintet.v1.Inference/", name);
  method.make = [context](std::shared_ptr<Rpc> rpc) {
    return std::make_shared<Handler>(context, std::move(rpc));
  };
  return method;
}

}  // namespace

std::vector<Method> InferenceMethods(CallContext* context) {
  std::vector<Method> methods = {
      MethodOf<GenerateCall>("Generate", context),
      MethodOf<GenerateStreamCall>("GenerateStream", context),
      MethodOf<EncodeCall>("Encode", context),
      MethodOf<ScoreCall>("Score", context),
      MethodOf<ClassifyCall>("Classify", context),
      MethodOf<TokenizeCall>("Tokenize", context),
      MethodOf<DetokenizeCall>("Detokenize", context),
      MethodOf<GetModelInfoCall>("GetModelInfo", context),
      MethodOf<ListModelsCall>("ListModels", context),
  };
  methods.push_back(MethodOf<EncodeStream>("EncodeStream", context));
  methods.back().long_lived = true;
  return methods;
}

}  // namespace quintet
