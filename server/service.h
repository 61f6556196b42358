// quintet.v1.Inference on gRPC's callback API. Reactions never block: work goes to the executor and
// the engines. Thread safe.
#pragma once

#include "quintet/v1/inference.grpc.pb.h"
#include "server/call.h"

namespace quintet {

// The methods of v1::Inference::CallbackService, but EncodeStream in bytes: gRPC ends a stream at a
// message that it cannot read as if the client had ended it.
using MethodsAfterEncodeStream =
    v1::Inference::WithCallbackMethod_Score<v1::Inference::WithCallbackMethod_Classify<
        v1::Inference::WithCallbackMethod_Tokenize<v1::Inference::WithCallbackMethod_Detokenize<
            v1::Inference::WithCallbackMethod_GetModelInfo<v1::Inference::Service>>>>>;
using ServiceMethods = v1::Inference::WithCallbackMethod_Generate<
    v1::Inference::WithCallbackMethod_GenerateStream<v1::Inference::WithCallbackMethod_Encode<
        v1::Inference::WithRawCallbackMethod_EncodeStream<MethodsAfterEncodeStream>>>>;

class InferenceService final : public ServiceMethods {
 public:
  // `context` and what it points to outlive the server that runs this.
  explicit InferenceService(CallContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* rpc,
                                     const v1::GenerateRequest* request,
                                     v1::GenerateResponse* response) override;
  grpc::ServerWriteReactor<v1::GenerateStreamResponse>* GenerateStream(
      grpc::CallbackServerContext* rpc, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Encode(grpc::CallbackServerContext* rpc,
                                   const v1::EncodeRequest* request,
                                   v1::EncodeResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* EncodeStream(
      grpc::CallbackServerContext* rpc) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* rpc, const v1::ScoreRequest* request,
                                  v1::ScoreResponse* response) override;
  grpc::ServerUnaryReactor* Classify(grpc::CallbackServerContext* rpc,
                                     const v1::ClassifyRequest* request,
                                     v1::ClassifyResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* rpc,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* rpc,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* rpc,
                                         const v1::GetModelInfoRequest* request,
                                         v1::GetModelInfoResponse* response) override;

 private:
  CallContext* const context_;
};

}  // namespace quintet
