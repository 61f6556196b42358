#include "server/kserve/model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/model_info.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

constexpr char kPlatform[] = "quintet";

// `text`: whether the model has a tokenizer.
std::vector<TensorInfo> GenerateOutputs(bool text) {
  std::vector<TensorInfo> outputs = {{"output_ids", kserve::TYPE_INT32, {-1, -1}},
                                     {"sequence_length", kserve::TYPE_INT32, {-1}},
                                     {"finish_reason", kserve::TYPE_STRING, {-1}},
                                     {"sequence_scores", kserve::TYPE_FP32, {-1}},
                                     {"output_log_probs", kserve::TYPE_FP32, {-1, -1}},
                                     {"cumulative_logprob", kserve::TYPE_FP32, {-1}},
                                     {"seed", kserve::TYPE_UINT64, {1}}};
  if (!text) return outputs;
  const std::vector<TensorInfo> texts = {{"text_output", kserve::TYPE_STRING, {-1}},
                                         {"matched_stop", kserve::TYPE_STRING, {-1}}};
  outputs.insert(outputs.begin(), texts.begin(), texts.end());
  return outputs;
}

std::vector<TensorInfo> EncodeOutputs(int64_t columns, int64_t d_model) {
  return {{"embedding", kserve::TYPE_FP32, {columns}},
          {"last_hidden_state", kserve::TYPE_FP32, {-1, d_model}}};
}

std::vector<TensorInfo> ScoreOutputs() {
  return {{"log_prob", kserve::TYPE_FP64, {-1}},
          {"target_length", kserve::TYPE_INT32, {-1}},
          {"token_log_probs", kserve::TYPE_FP32, {-1, -1}}};
}

std::vector<TensorInfo> ClassifyOutputs(Head head, int64_t labels) {
  switch (head) {
    case Head::kQuestionAnswering:
      return {{"answer", kserve::TYPE_STRING, {-1}},
              {"answer_score", kserve::TYPE_FP32, {-1}},
              {"answer_offsets", kserve::TYPE_INT32, {-1, 2}}};
    case Head::kTokenClassification:
      return {{"label", kserve::TYPE_STRING, {-1}},
              {"probabilities", kserve::TYPE_FP32, {-1, labels}},
              {"logits", kserve::TYPE_FP32, {-1, labels}},
              {"offsets", kserve::TYPE_INT32, {-1, 2}}};
    default:
      return {{"label", kserve::TYPE_STRING, {1}},
              {"probabilities", kserve::TYPE_FP32, {labels}},
              {"logits", kserve::TYPE_FP32, {labels}}};
  }
}

std::vector<TensorInfo> OutputsOf(const ModelHost& host) {
  std::vector<TensorInfo> all;
  for (const OperationInfo& operation : OperationsOf(host)) {
    all.insert(all.end(), operation.outputs.begin(), operation.outputs.end());
  }
  all.insert(all.end(), CommonOutputs().begin(), CommonOutputs().end());
  return all;
}

bool Supports(const ModelHost& host, RequestKind kind) {
  return CheckHead(kind, host.config()).ok();
}

void AddTensor(const TensorInfo& tensor, kserve::ModelMetadataResponse::TensorMetadata* to) {
  to->set_name(tensor.name);
  to->set_datatype(DatatypeName(tensor.type));
  to->add_shape(-1);  // the batch dimension
  to->mutable_shape()->Add(tensor.dims.begin(), tensor.dims.end());
}

void WriteDuration(const ModelMetrics::Totals::Duration& duration, kserve::StatisticDuration* to) {
  to->set_count(duration.count);
  to->set_ns(static_cast<uint64_t>(std::llround(std::max(duration.seconds, 0.0) * 1e9)));
}

// Returns the state of a model in Triton's repository index, and the reason if it is not READY.
std::pair<const char*, const char*> StateOf(const ServedModel::View& view) {
  switch (view.state) {
    case ModelState::kServing:
    case ModelState::kReplacing:
      if (!view.accepts) return {"UNLOADING", "the server is shutting down"};
      return {"READY", ""};
    case ModelState::kIdle:
      return {"READY", "idle: the next call loads the model"};
    case ModelState::kLoading:
      return {"LOADING",
              view.accepts ? "the model is loading, and calls wait" : "the model is loading"};
    case ModelState::kDraining:
      return {"UNLOADING", view.accepts ? "the model is being replaced, and calls wait"
                                        : "calls in progress end before the model is unloaded"};
    case ModelState::kFailed:
      return {"UNAVAILABLE", "the model was not loaded"};
    case ModelState::kUnloaded:
      return {"UNAVAILABLE", "unloaded"};
  }
  return {"UNAVAILABLE", ""};
}

void AddInstance(const ModelHost& host, kserve::ModelConfig* config) {
  const Placement& placement = host.options().placement;
  kserve::ModelInstanceGroup* group = config->add_instance_group();
  group->set_name(host.options().name);
  group->set_count(1);
  const std::string& device = placement.device;  // "cpu", "cuda" or "cuda:N"
  if (device.rfind("cuda", 0) != 0) {
    group->set_kind(kserve::ModelInstanceGroup::KIND_CPU);
    return;
  }
  group->set_kind(kserve::ModelInstanceGroup::KIND_GPU);
  int32_t index = 0;
  const size_t colon = device.find(':');
  if (colon != std::string::npos) (void)absl::SimpleAtoi(device.substr(colon + 1), &index);
  group->add_gpus(index);
}

void AddParameters(const ModelHost& host, kserve::ModelConfig* config) {
  const auto add = [config](const char* name, const std::string& value) {
    auto* const parameter = config->add_parameters();
    parameter->set_key(name);
    parameter->mutable_value()->set_string_value(value);
  };
  const ModelConfig& model = host.config();
  add("family", FamilyName(model.family));
  add("head", HeadName(model.head));
  add("dtype", WeightTypeName(host.options().load.weights));
  add("max_input_tokens", absl::StrCat(MaxInputTokens(host)));
  if (Supports(host, RequestKind::kGenerate)) {
    add("max_new_tokens", absl::StrCat(host.options().decoding.max_new_tokens));
  }
  if (model.head == Head::kSequenceClassification || model.head == Head::kTokenClassification) {
    add("labels",
        nlohmann::json(model.label_names)
            .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace));
  }
}

}  // namespace

bool IsKnownOutput(absl::string_view name) {
  std::vector<std::vector<TensorInfo>> groups = {CommonOutputs(), GenerateOutputs(true),
                                                 EncodeOutputs(0, 0), ScoreOutputs()};
  for (Head head :
       {Head::kSequenceClassification, Head::kTokenClassification, Head::kQuestionAnswering}) {
    groups.push_back(ClassifyOutputs(head, 0));
  }
  for (const std::vector<TensorInfo>& outputs : groups) {
    for (const TensorInfo& output : outputs) {
      if (name == output.name) return true;
    }
  }
  return false;
}

const std::vector<TensorInfo>& CommonOutputs() {
  static const auto* const outputs =
      new std::vector<TensorInfo>{{"num_input_tokens", kserve::TYPE_INT32, {1}}};
  return *outputs;
}

std::vector<OperationInfo> OperationsOf(const ModelHost& host) {
  const ModelConfig& config = host.config();
  std::vector<OperationInfo> operations;
  if (Supports(host, RequestKind::kGenerate)) {
    operations.push_back(
        {RequestKind::kGenerate, "generate", GenerateOutputs(host.tokenizer() != nullptr)});
  }
  if (Supports(host, RequestKind::kClassify)) {
    const int64_t labels = static_cast<int64_t>(config.label_names.size());
    operations.push_back(
        {RequestKind::kClassify, "classify", ClassifyOutputs(config.head, labels)});
  }
  if (Supports(host, RequestKind::kEncode)) {
    const int64_t columns = host.modules() == nullptr ? config.d_model : host.modules()->columns;
    operations.push_back({RequestKind::kEncode, "encode", EncodeOutputs(columns, config.d_model)});
  }
  if (Supports(host, RequestKind::kScore)) {
    operations.push_back({RequestKind::kScore, "score", ScoreOutputs()});
  }
  return operations;
}

std::vector<TensorInfo> InputsOf(const ModelHost& host) {
  const bool text = host.tokenizer() != nullptr;
  const bool questions = host.config().head == Head::kQuestionAnswering;
  std::vector<TensorInfo> inputs;
  if (text) inputs.push_back({"text_input", kserve::TYPE_STRING, {1}});
  inputs.push_back({"input_ids", kserve::TYPE_INT32, {-1}, /*optional=*/text});
  inputs.push_back({"attention_mask", kserve::TYPE_INT32, {-1}});
  inputs.push_back({"input_lengths", kserve::TYPE_INT32, {1}});
  if (questions) inputs.push_back({"context", kserve::TYPE_STRING, {1}, /*optional=*/false});
  if (Supports(host, RequestKind::kScore)) {
    if (text) inputs.push_back({"target_text", kserve::TYPE_STRING, {-1}});
    inputs.push_back({"target_ids", kserve::TYPE_INT32, {-1, -1}});
    inputs.push_back({"target_lengths", kserve::TYPE_INT32, {-1}});
  }
  if (Supports(host, RequestKind::kGenerate)) {
    inputs.push_back({"sampling_parameters", kserve::TYPE_STRING, {1}});
    inputs.push_back({"stream", kserve::TYPE_BOOL, {1}});
    inputs.push_back({"exclude_input_in_output", kserve::TYPE_BOOL, {1}});
  }
  return inputs;
}

int MaxBatch(const ModelHost& host) {
  return static_cast<int>(std::min<int64_t>(kMaxInputs, host.options().engine.max_queue_requests));
}

absl::Status CheckVersion(const std::string& version, const char* field) {
  if (version.empty() || version == kModelVersion) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(field, ": must be empty or ", kModelVersion, ", the only version"));
}

void WriteMetadata(const ModelHost& host, kserve::ModelMetadataResponse* response) {
  response->set_name(host.options().name);
  response->add_versions(std::string(kModelVersion));
  response->set_platform(kPlatform);
  for (const TensorInfo& input : InputsOf(host)) AddTensor(input, response->add_inputs());
  for (const TensorInfo& output : OutputsOf(host)) AddTensor(output, response->add_outputs());
}

void WriteConfig(const ModelHost& host, kserve::ModelConfig* config) {
  config->set_name(host.options().name);
  config->set_platform(kPlatform);
  config->set_backend(kPlatform);
  config->set_max_batch_size(MaxBatch(host));
  for (const TensorInfo& tensor : InputsOf(host)) {
    kserve::ModelInput* input = config->add_input();
    input->set_name(tensor.name);
    input->set_data_type(tensor.type);
    input->mutable_dims()->Add(tensor.dims.begin(), tensor.dims.end());
    input->set_optional(tensor.optional);
  }
  for (const TensorInfo& tensor : OutputsOf(host)) {
    kserve::ModelOutput* output = config->add_output();
    output->set_name(tensor.name);
    output->set_data_type(tensor.type);
    output->mutable_dims()->Add(tensor.dims.begin(), tensor.dims.end());
  }
  AddInstance(host, config);
  config->mutable_dynamic_batching()->set_priority_levels(3);
  config->mutable_dynamic_batching()->set_default_priority_level(2);
  AddParameters(host, config);
  config->mutable_model_transaction_policy()->set_decoupled(Supports(host, RequestKind::kGenerate));
}

void WriteStatistics(const ModelHost& host, kserve::ModelStatistics* statistics) {
  const ModelMetrics::Totals totals = host.metrics().totals();
  statistics->set_name(host.options().name);
  statistics->set_version(kModelVersion);
  statistics->set_last_inference(static_cast<uint64_t>(totals.last_finished_ms));
  statistics->set_inference_count(totals.succeeded);
  statistics->set_execution_count(totals.steps);
  kserve::InferStatistics* inference = statistics->mutable_inference_stats();
  WriteDuration(totals.e2e, inference->mutable_success());
  inference->mutable_fail()->set_count(totals.failed);
  WriteDuration(totals.queue, inference->mutable_queue());
  WriteDuration(
      {totals.e2e.count, totals.e2e.seconds - totals.queue.seconds - totals.inference.seconds},
      inference->mutable_compute_input());
  WriteDuration(totals.inference, inference->mutable_compute_infer());
  const EngineCounters counters = EngineGroup::Sum(host.engine().states());
  const int64_t misses = counters.encoder_cache_queries - counters.encoder_cache_hits;
  inference->mutable_cache_hit()->set_count(static_cast<uint64_t>(counters.encoder_cache_hits));
  inference->mutable_cache_miss()->set_count(static_cast<uint64_t>(misses));
}

void WriteIndex(const ServedModel& model, const ServedModel::View& view,
                kserve::RepositoryIndexResponse::ModelIndex* index) {
  index->set_name(model.name());
  index->set_version(kModelVersion);
  const auto [state, reason] = StateOf(view);
  index->set_state(state);
  index->set_reason(reason);
}

}  // namespace quintet
