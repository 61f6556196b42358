#include "tests/server/kserve/infer_checks.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "engine/options.h"
#include "kernels/base/check.h"
#include "server/errors.h"
#include "server/kserve/infer.h"

namespace quintet {
namespace {

void CheckError(const absl::Status& status) {
  QT_CHECK(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
           absl::IsNotFound(status));
  for (const char c : status.message()) {
    QT_CHECK(absl::ascii_isprint(static_cast<unsigned char>(c)) && c != '/');
  }
  const RpcOutcome outcome =
      ToRpcOutcome(InferTask::Renamed(status), "fuzz", absl::Milliseconds(200));
  QT_CHECK_LE(outcome.status.error_details().size(), 4096u);
}

void CheckRequest(const Request& request, const ModelHost& host) {
  QT_CHECK(!request.input.empty());
  for (const int32_t id : request.input) {
    QT_CHECK_GE(id, 0);
    QT_CHECK_LT(id, host.config().vocab);
  }
  for (const std::vector<int32_t>& target : request.targets) QT_CHECK(!target.empty());
  if (request.kind == RequestKind::kGenerate) {
    QT_CHECK(CheckDecoding(request.decoding, host.config().vocab).ok());
  }
}

// Returns a result of the shape that the engine returns for `request`.
Result ResultOf(const Request& request, const ModelHost& host) {
  Result result;
  result.input_tokens = static_cast<int64_t>(request.input.size());
  switch (request.kind) {
    case RequestKind::kGenerate:
      for (int i = 0; i < request.decoding.num_return_sequences; ++i) {
        GeneratedSequence sequence;
        sequence.token_ids.assign(static_cast<size_t>(i + 1), 5);
        sequence.text.assign(static_cast<size_t>(i), 'x');
        if (request.decoding.logprobs) sequence.logprobs.resize(sequence.token_ids.size());
        result.sequences.push_back(std::move(sequence));
      }
      break;
    case RequestKind::kEncode:
      result.rows = request.pooling == Pooling::kNone ? result.input_tokens : 1;
      result.columns = host.modules() == nullptr || request.pooling == Pooling::kNone
                           ? host.config().d_model
                           : host.modules()->columns;
      break;
    case RequestKind::kScore:
      for (const std::vector<int32_t>& target : request.targets) {
        result.targets.emplace_back();
        result.targets.back().tokens.resize(target.size());
      }
      break;
    case RequestKind::kClassify:
      result.rows = host.config().head == Head::kSequenceClassification ? 1 : result.input_tokens;
      result.columns = static_cast<int64_t>(host.config().label_names.size());
      if (host.config().head == Head::kQuestionAnswering) result.columns = 2;
      break;
  }
  result.values.assign(static_cast<size_t>(result.rows * result.columns), 0.5f);
  return result;
}

int64_t TypedValues(const kserve::InferTensorContents& contents) {
  return int64_t{contents.int_contents_size()} + contents.uint64_contents_size() +
         contents.fp32_contents_size() + contents.fp64_contents_size() +
         contents.bytes_contents_size();
}

// Checks the element count of each output. All outputs or none must be in raw_output_contents.
void CheckResponse(const kserve::ModelInferResponse& response) {
  const bool raw = response.raw_output_contents_size() > 0;
  if (raw) QT_CHECK_EQ(response.raw_output_contents_size(), response.outputs_size());
  for (int i = 0; i < response.outputs_size(); ++i) {
    const auto& output = response.outputs(i);
    int64_t elements = 1;
    for (const int64_t size : output.shape()) elements *= size;
    QT_CHECK_EQ(TypedValues(output.contents()), raw ? 0 : elements);
    if (!raw) continue;
    const std::string& bytes = response.raw_output_contents(i);
    if (output.datatype() == "BYTES") {
      QT_CHECK_GE(static_cast<int64_t>(bytes.size()), 4 * elements);
      continue;
    }
    const int64_t size = output.datatype() == "FP16" || output.datatype() == "BF16"     ? 2
                         : output.datatype() == "FP64" || output.datatype() == "UINT64" ? 8
                                                                                        : 4;
    QT_CHECK_EQ(static_cast<int64_t>(bytes.size()), size * elements);
  }
}

}  // namespace

CheckedInfer CheckInfer(const kserve::ModelInferRequest& request, bool streams,
                        const ModelHost& host) {
  InputLimits limits;
  limits.vocab = host.config().vocab;
  if (host.config().max_positions > 0) limits.max_tokens = host.config().max_positions;
  InferTask task(streams);
  task.Read(request, absl::OkStatus());
  if (const absl::Status status = CheckCallOptions(task.call()); !status.ok()) {
    CheckError(status);
    return {status, 0};
  }
  const int64_t count = task.size().requests;
  QT_CHECK_GE(count, 1);
  QT_CHECK_LE(count, kMaxInputs);
  QT_CHECK_GE(task.ResponseBound(host, limits), 0);
  const absl::StatusOr<std::vector<Request>> requests = task.Prepare(host, limits);
  if (!requests.ok()) {
    CheckError(requests.status());
    return {requests.status(), 0};
  }
  QT_CHECK_EQ(static_cast<int64_t>(requests->size()), count);
  int64_t padded = 0;
  std::vector<Result> results;
  for (const Request& one : *requests) {
    CheckRequest(one, host);
    results.push_back(ResultOf(one, host));
    padded = std::max(padded, ResponseBytes({one}, host));
  }
  QT_CHECK_GE(task.ResponseMemory(*requests, host), padded * count);
  kserve::ModelInferResponse response;
  task.Write(host, results, v1::CallInfo(), &response);
  CheckResponse(response);
  return {absl::OkStatus(), requests->size()};
}

}  // namespace quintet
