// Conversion between protobuf and engine for every RPC method: from a request message to engine
// requests, and from engine results to the response message. Independent of gRPC.
//
// Functions that return a status return INVALID_ARGUMENT with a message of the form "field: text"
// if the request is invalid, and FAILED_PRECONDITION if the model lacks a tokenizer.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/request.h"
#include "quintet/v1/inference.pb.h"
#include "server/call.h"
#include "server/model_host.h"
#include "server/proto_conversion.h"

namespace quintet {

// Upper bound, in bytes, of the memory that the results of `requests`, the response message and its
// serialized form take at one time.
int64_t ResponseBytes(const std::vector<Request>& requests, const ModelHost& host);
// Like ResponseBytes, but for a response that pads all results to the size of the largest one.
int64_t PaddedResponseBytes(const std::vector<Request>& requests, const ModelHost& host);

// Return upper bounds, in bytes, of the memory that the response takes (see ResponseBytes), for
// Encode and Tokenize. They are computed before the inputs are tokenized, because the responses of
// these two methods can be large.
int64_t EncodeResponseBound(const google::protobuf::RepeatedPtrField<v1::Input>& inputs,
                            const v1::EncodeOptions& options, const ModelHost& host,
                            const InputLimits& limits);
int64_t EncodeResponseBound(const v1::Input& input, const v1::EncodeOptions& options,
                            const ModelHost& host, const InputLimits& limits);
int64_t TokenizeResponseBound(const std::string& text);

absl::StatusOr<std::vector<Request>> GenerateRequests(const v1::GenerateRequest& proto,
                                                      const ModelHost& host,
                                                      const InputLimits& limits, bool stream);
void WriteGenerate(const v1::GenerateRequest& proto, const Result& result,
                   v1::GenerateResponse* response);

absl::StatusOr<Request> EncodeRequestOf(const v1::Input& input, const v1::EncodeOptions& options,
                                        const v1::CallOptions& call, const ModelHost& host,
                                        const InputLimits& limits, const std::string& field);

absl::StatusOr<std::vector<Request>> ScoreRequests(const v1::ScoreRequest& proto,
                                                   const ModelHost& host,
                                                   const InputLimits& limits);
void WriteScores(const Result& result, v1::ScoreResponse* response);

// Handles one Classify call. Keeps the byte spans of the tokens from Prepare until Write.
class ClassifyHandler {
 public:
  absl::StatusOr<std::vector<Request>> Prepare(const v1::ClassifyRequest& proto,
                                               const ModelHost& host, const InputLimits& limits);
  void Write(const v1::ClassifyRequest& proto, const ModelHost& host,
             const std::vector<Result>& results, v1::ClassifyResponse* response) const;

 private:
  struct Item {
    // Token ids of the input.
    std::vector<int32_t> ids;
    // Byte spans of tokens. Token classification: the spans of the input's tokens, or empty if the
    // input is not text. Question answering: the spans of the context's tokens.
    std::vector<TokenSpan> spans;
    // Question answering: index of the first token of the context in the tokenized input, and so in
    // the rows of the model's output.
    int64_t context_begin = 0;
  };
  // Question answering: appends the tokens of the next context to `ids`, which already hold the
  // tokens of its question.
  absl::Status AddContext(const v1::ClassifyRequest& proto, const ModelHost& host,
                          const InputLimits& limits, std::vector<int32_t>* ids);
  static void WriteTokenLabels(const Item& item, const ModelHost& host, const Result& result,
                               v1::Classification* to);
  static void WriteSpans(const Item& item, const v1::ClassifyRequest& proto,
                         const std::string& context, const Result& result, v1::Classification* to);
  std::vector<Item> items_;
};

// Reserves `bytes` of the memory budget for the response of a call, replacing an earlier
// reservation for that response. An error ends the call.
using ReserveBytes = absl::FunctionRef<absl::Status(int64_t bytes)>;
absl::Status WriteTokens(const v1::TokenizeRequest& proto, const ModelHost& host,
                         const InputLimits& limits, ReserveBytes reserve,
                         v1::TokenizeResponse* response);
absl::Status WriteText(const v1::DetokenizeRequest& proto, const ModelHost& host,
                       ReserveBytes reserve, v1::DetokenizeResponse* response);

}  // namespace quintet
