// The part of InferTask that depends on the model: operation, outputs and options.
#include <initializer_list>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/kserve/infer.h"
#include "server/kserve/parameters.h"

namespace quintet {
namespace {

bool Contains(const std::vector<TensorInfo>& tensors, absl::string_view name) {
  for (const TensorInfo& tensor : tensors) {
    if (name == tensor.name) return true;
  }
  return false;
}

std::string OutputNames(const std::vector<OperationInfo>& operations) {
  std::string names;
  for (const OperationInfo& operation : operations) {
    for (const TensorInfo& output : operation.outputs) absl::StrAppend(&names, output.name, ", ");
  }
  for (const TensorInfo& output : CommonOutputs()) absl::StrAppend(&names, output.name);
  return names;
}

const OperationInfo* OfKind(const std::vector<OperationInfo>& operations, RequestKind kind) {
  for (const OperationInfo& operation : operations) {
    if (operation.kind == kind) return &operation;
  }
  return nullptr;
}

// Returns the operation that has the output `name`, or null if all operations have this output.
// Errors name the field outputs[index].
absl::StatusOr<const OperationInfo*> OperationOf(const std::vector<OperationInfo>& operations,
                                                 const std::string& name, size_t index,
                                                 const ModelHost& host) {
  if (Contains(CommonOutputs(), name)) return nullptr;
  for (const OperationInfo& operation : operations) {
    if (Contains(operation.outputs, name)) return &operation;
  }
  const std::string field = absl::StrCat("outputs[", index, "].name");
  if (!IsKnownOutput(name)) {
    return InvalidField(field, "must be one of ", OutputNames(operations));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(field, ": a model with the head \"", HeadName(host.config().head), "\"",
                   host.tokenizer() == nullptr ? " and without tokenizer" : "",
                   " does not return this output, but ", OutputNames(operations)));
}

}  // namespace

absl::Status InferTask::Resolve(const ModelHost& host) {
  if (!input_ids_ && host.tokenizer() == nullptr) {
    return absl::FailedPreconditionError("text_input: this model has no tokenizer; send input_ids");
  }
  QT_RETURN_IF_ERROR(ChooseOperation(host));
  if (outputs_.empty()) AddDefaultOutputs(host);
  QT_RETURN_IF_ERROR(ReadControls());
  QT_RETURN_IF_ERROR(ReadOptions());
  if (operation_ == RequestKind::kEncode) return CheckEncode();
  if (operation_ == RequestKind::kGenerate) {
    decoding_.set_return_scores(Wants("sequence_scores"));
    if (Wants("output_log_probs") || Wants("cumulative_logprob")) decoding_.set_logprobs(true);
  }
  return absl::OkStatus();
}

absl::Status InferTask::ChooseOperation(const ModelHost& host) {
  const std::vector<OperationInfo> operations = OperationsOf(host);
  const OperationInfo* chosen = nullptr;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    QT_ASSIGN_OR_RETURN(const OperationInfo* operation,
                        OperationOf(operations, outputs_[i], i, host));
    if (operation == nullptr) continue;
    if (chosen != nullptr && operation != chosen) {
      return InvalidField("outputs", "must belong to one operation, got outputs of ", chosen->name,
                          " and of ", operation->name, "; request them separately");
    }
    chosen = operation;
  }
  const char* const target = target_ids_ ? "target_ids" : "target_text";
  if (targets_of_each_ > 0) {
    QT_RETURN_IF_ERROR(CheckHead(RequestKind::kScore, host.config()));
    if (chosen != nullptr && chosen->kind != RequestKind::kScore) {
      return InvalidField(target, "is an input of score, but outputs of ", chosen->name,
                          " are requested");
    }
    chosen = OfKind(operations, RequestKind::kScore);
  }
  if (chosen == nullptr && !operations.empty()) chosen = &operations.front();
  if (chosen == nullptr) return absl::FailedPreconditionError("this model has no operation");
  operation_ = chosen->kind;
  if (operation_ == RequestKind::kScore && targets_of_each_ == 0) {
    return InvalidField("inputs", "must hold target_text or target_ids for the outputs of score");
  }
  const bool questions =
      operation_ == RequestKind::kClassify && host.config().head == Head::kQuestionAnswering;
  if (contexts_.empty() || questions) return absl::OkStatus();
  return InvalidField("context", "is an input of question answering only");
}

void InferTask::AddDefaultOutputs(const ModelHost& host) {
  switch (operation_) {
    case RequestKind::kGenerate:
      outputs_ = input_ids_ ? std::vector<std::string>{"output_ids", "sequence_length"}
                            : std::vector<std::string>{"text_output"};
      return;
    case RequestKind::kEncode:
      outputs_ = {"embedding"};
      return;
    case RequestKind::kScore:
      outputs_ = {"log_prob"};
      return;
    case RequestKind::kClassify:
      outputs_ = host.config().head == Head::kQuestionAnswering
                     ? std::vector<std::string>{"answer", "answer_score"}
                     : std::vector<std::string>{"label", "probabilities"};
      return;
  }
}

absl::Status InferTask::ReadControls() {
  bool exclude_input = true;
  for (const auto& [name, flag] : std::initializer_list<std::pair<const char*, bool*>>{
           {"stream", &stream_},
           {"exclude_input_in_output", &exclude_input},
           {"triton_enable_empty_final_response", &empty_final_response_}}) {
    const auto found = parameters_.find(name);
    if (found == parameters_.end()) continue;
    QT_ASSIGN_OR_RETURN(*flag, ReadFlag(name, found->second));
    parameters_.erase(found);
  }
  parameters_.erase("binary_data_output");  // has a meaning only in KServe's HTTP protocol
  if (parameters_.count("timeout") > 0) {
    return InvalidField("parameters.timeout",
                        "is not supported; set a deadline of the gRPC call (client_timeout)");
  }
  const bool generates = operation_ == RequestKind::kGenerate;
  if (!exclude_input) {
    if (!generates) return InvalidField("exclude_input_in_output", "needs outputs of generate");
    parameters_.emplace("echo", true);
  }
  if (!stream_) return absl::OkStatus();
  if (!streams_)
    return InvalidField("stream", "needs ModelStreamInfer; ModelInfer has one response");
  if (!generates) return InvalidField("stream", "needs outputs of generate");
  if (inputs_.size() > 1) return InvalidField("stream", "needs one input, got ", inputs_.size());
  return absl::OkStatus();
}

absl::Status InferTask::ReadOptions() {
  std::vector<google::protobuf::Message*> messages = {&decoding_};
  // Fields that no parameter may set: the requested outputs set the first five, other code sets the
  // rest.
  std::vector<absl::string_view> hidden = {
      "return_text", "return_token_ids", "return_scores", "logprobs", "top_logprobs", "call",
      "input",       "inputs",           "targets",       "pairs",    "model",        "request_id",
      "priority",    "adapter"};
  if (operation_ == RequestKind::kEncode) messages = {&encode_};
  if (operation_ == RequestKind::kScore) messages = {&score_};
  if (operation_ == RequestKind::kClassify) messages = {&classify_};
  messages.push_back(&call_);
  ParameterReader reader(std::move(messages), std::move(hidden));
  for (const auto& [name, value] : parameters_) QT_RETURN_IF_ERROR(reader.Set(name, value));
  if (!sampling_parameters_.has_value()) return absl::OkStatus();
  if (operation_ != RequestKind::kGenerate) {
    return InvalidField("sampling_parameters", "needs outputs of generate");
  }
  return reader.SetSampling(*sampling_parameters_);
}

absl::Status InferTask::CheckEncode() {
  if (!Wants("last_hidden_state")) {
    if (encode_.pooling() != v1::POOLING_NONE) return absl::OkStatus();
    return InvalidField("parameters.pooling",
                        "must not be none; request last_hidden_state instead");
  }
  if (Wants("embedding")) {
    return InvalidField("outputs", "must not hold both embedding and last_hidden_state");
  }
  if (encode_.pooling() != v1::POOLING_UNSPECIFIED && encode_.pooling() != v1::POOLING_NONE) {
    return InvalidField("parameters.pooling", "has no effect on last_hidden_state");
  }
  encode_.set_pooling(v1::POOLING_NONE);
  return absl::OkStatus();
}

}  // namespace quintet
