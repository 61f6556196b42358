// Translates a ModelInferRequest to request messages of quintet.v1, which the handlers of
// quintet.v1 check and convert (server/handlers.h), and the engine's results to a
// ModelInferResponse. server/KSERVE.md describes the mapping. Independent of gRPC. Not thread-safe.
//
// Order of calls: Read, ResponseBound, Prepare, Write. Errors of Read and ResponseBound are kept
// and returned by Prepare.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "quintet/v1/inference.pb.h"
#include "server/call.h"
#include "server/handlers.h"
#include "server/kserve/model.h"
#include "server/kserve/results.h"
#include "server/kserve/tensors.h"

namespace quintet {

class InferTask {
 public:
  // `streams`: whether the RPC can return several responses to a request.
  explicit InferTask(bool streams) : streams_(streams) {}

  // Memory, in bytes, that Read takes in addition to the message.
  static int64_t MemoryToRead(const kserve::ModelInferRequest& request);
  // Reads the parts of the request that do not depend on the model. `reserved` is the status of the
  // memory reservation for these parts. If it is an error, reads only the model name and the
  // request id.
  void Read(const kserve::ModelInferRequest& request, const absl::Status& reserved);
  const v1::CallOptions& call() const { return call_; }
  const std::string& id() const { return id_; }
  CallSize size() const;

  // Called before the inputs are tokenized: chooses the operation, reads its options, and returns
  // an upper bound, in bytes, of the memory that the response takes.
  int64_t ResponseBound(const ModelHost& host, const InputLimits& limits);

  // Returns one engine request for each input. Errors name tensors and parameters of the request.
  absl::StatusOr<std::vector<Request>> Prepare(const ModelHost& host, const InputLimits& limits);
  // Upper bound, in bytes, of the memory of the results of `requests` and of the response.
  int64_t ResponseMemory(const std::vector<Request>& requests, const ModelHost& host) const;

  // Replaces the names call.model, call.priority and call.adapter in an error by KServe's names.
  static absl::Status Renamed(const absl::Status& status);

  // Writes the name of the served model, `model`, and the id of the request.
  void WriteHead(const std::string& model, kserve::ModelInferResponse* response) const;
  // Writes the outputs from the results of all requests. If the response is streamed, writes only
  // those texts and ids that no chunk contained. `info` has usage and timing.
  void Write(const ModelHost& host, const std::vector<Result>& results, const v1::CallInfo& info,
             kserve::ModelInferResponse* response) const;
  // Whether the outputs of the request include `output`, "text_output" for example.
  bool Wants(absl::string_view output) const;
  // Writes a chunk of one sequence, and remembers how much of the sequence the chunk contains.
  void WriteChunk(const std::string& model, const v1::GenerateChunk& chunk,
                  kserve::ModelInferResponse* response);

 private:
  absl::Status ReadAll(const kserve::ModelInferRequest& request);
  absl::Status ReadInputs(const InputTensors& tensors);
  absl::Status ReadTexts(const InputTensors& tensors);
  absl::Status ReadIds(const InputTensors& tensors);
  absl::Status ReadTargets(const InputTensors& tensors);
  absl::Status ReadContexts(const InputTensors& tensors);
  absl::Status ReadOutputs(const kserve::ModelInferRequest& request);

  absl::Status Resolve(const ModelHost& host);
  absl::Status ChooseOperation(const ModelHost& host);
  void AddDefaultOutputs(const ModelHost& host);
  absl::Status ReadControls();
  absl::Status ReadOptions();
  absl::Status CheckEncode();

  absl::StatusOr<std::vector<Request>> PrepareRow(size_t row, const ModelHost& host,
                                                  const InputLimits& limits);
  // Whether the chunks of a stream have contained all requested texts and ids.
  bool IsAllSent(const v1::GenerateResponse& response) const;
  // Replaces the field names of quintet.v1 by tensor names in an error of input number `row`.
  absl::Status InTermsOfTensors(const absl::Status& status, size_t row) const;

  const bool streams_;
  absl::Status status_;
  std::string id_;
  v1::CallOptions call_;
  std::map<std::string, nlohmann::json> parameters_;
  std::vector<std::string> outputs_;  // requested, or the default ones once resolved
  std::optional<std::string> sampling_parameters_;

  // Shapes: inputs_ [batch], targets_ [batch, targets_of_each_], contexts_ [batch] or empty.
  std::vector<v1::Input> inputs_, targets_, contexts_;
  size_t targets_of_each_ = 0;
  bool input_ids_ = false, target_ids_ = false;  // token ids, not text
  bool flat_ = false;                            // the input tensor has no second dimension
  bool typed_ = false;                           // the elements are in typed fields

  RequestKind operation_ = RequestKind::kGenerate;
  v1::DecodingOptions decoding_;
  v1::EncodeOptions encode_;
  v1::ScoreRequest score_;        // options only
  v1::ClassifyRequest classify_;  // options; Prepare adds the inputs
  ClassifyHandler classifier_;
  bool stream_ = false, empty_final_response_ = false;
  std::map<uint32_t, SentPart> sent_;  // by index of the sequence
};

}  // namespace quintet
