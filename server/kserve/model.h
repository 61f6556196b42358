// What KServe's gRPC protocol says about a model: its operations, their tensors, and the responses
// of ModelMetadata, ModelConfig, ModelStatistics and RepositoryIndex. server/KSERVE.md has the
// tables. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "engine/request.h"
#include "server/call.h"
#include "server/kserve/tensors.h"
#include "server/model_host.h"

namespace quintet {

// The only version of every model in KServe's protocol, whatever its version in quintet.v1 is.
inline constexpr char kModelVersion[] = "1";

// An input or output of a model.
struct TensorInfo {
  const char* name;
  kserve::DataType type;
  // Dimensions without the batch dimension; -1: variable.
  std::vector<int64_t> dims;
  // For an input: whether requests may omit it. A request has either text_input or input_ids, so
  // both are optional for a model that takes both.
  bool optional = true;
};

struct OperationInfo {
  RequestKind kind;
  const char* name;                 // "generate", "encode", "score", "classify"
  std::vector<TensorInfo> outputs;  // without those of kCommonOutputs
};

// Outputs that every operation has.
const std::vector<TensorInfo>& CommonOutputs();
// Whether at least one kind of model has an output of this name.
bool IsKnownOutput(absl::string_view name);

// The operations that the model can run, the default one first.
std::vector<OperationInfo> OperationsOf(const ModelHost& host);
// The inputs of all operations of the model.
std::vector<TensorInfo> InputsOf(const ModelHost& host);

// Returns the maximum number of inputs of a request: 64, or the queue limit if that is lower.
int MaxBatch(const ModelHost& host);

// Returns NOT_FOUND unless `version` is empty or kModelVersion. The error names the field `field`.
absl::Status CheckVersion(const std::string& version, const char* field);

void WriteMetadata(const ModelHost& host, kserve::ModelMetadataResponse* response);
void WriteConfig(const ModelHost& host, kserve::ModelConfig* config);
void WriteStatistics(const ModelHost& host, kserve::ModelStatistics* statistics);

// The model may be in any state.
void WriteIndex(const ServedModel& model, const ServedModel::View& view,
                kserve::RepositoryIndexResponse::ModelIndex* index);

}  // namespace quintet
