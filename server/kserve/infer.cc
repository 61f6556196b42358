#include "server/kserve/infer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/unicode.h"
#include "server/errors.h"
#include "server/field_names.h"
#include "server/kserve/parameters.h"
#include "server/oneof.h"

namespace quintet {
namespace {

constexpr size_t kMaxIdBytes = 256;
constexpr int kMaxOutputs = 32, kMaxParameters = 64;

// All inputs that at least one kind of model has.
constexpr InputTensors::Spec kInputs[] = {
    {"text_input", kserve::TYPE_STRING},
    {"input_ids", kserve::TYPE_INT32},
    {"attention_mask", kserve::TYPE_INT32},
    {"input_lengths", kserve::TYPE_INT32},
    {"target_text", kserve::TYPE_STRING},
    {"target_ids", kserve::TYPE_INT32},
    {"target_lengths", kserve::TYPE_INT32},
    {"context", kserve::TYPE_STRING},
    {"sampling_parameters", kserve::TYPE_STRING},
    {"stream", kserve::TYPE_BOOL},
    {"exclude_input_in_output", kserve::TYPE_BOOL},
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Returns the dimensions of a tensor, which must match `expected` (-1: any size). The tensor may
// lack the last dimension if its expected size is 1, or the first dimension; a missing dimension
// becomes 1.
absl::StatusOr<std::vector<int64_t>> Dims(const std::string& name, const InputTensor& tensor,
                                          const std::vector<int64_t>& expected) {
  const auto matches = [&](const std::vector<int64_t>& shape) {
    return std::equal(shape.begin(), shape.end(), expected.begin(), expected.end(),
                      [](int64_t got, int64_t want) { return want == -1 || got == want; });
  };
  std::vector<int64_t> shape = tensor.shape();
  if (matches(shape)) return shape;
  if (expected.back() == 1) {
    shape.push_back(1);
    if (matches(shape)) return shape;
    shape.pop_back();
  }
  shape.insert(shape.begin(), 1);
  if (matches(shape)) return shape;
  return InvalidField(name, "must have the shape ", ShapeText(expected), ", got ",
                      ShapeText(tensor.shape()));
}

absl::Status CheckBatch(const std::string& name, int64_t batch, int most) {
  if (batch <= most) return absl::OkStatus();
  return InvalidField(name, "must hold 1 to ", most, ", got ", batch);
}

absl::Status AddText(const std::string& field, absl::string_view text,
                     std::vector<v1::Input>* inputs) {
  if (!IsUtf8({text.data(), text.size()})) return InvalidField(field, "must be UTF-8");
  inputs->emplace_back();
  inputs->back().set_text(std::string(text));
  return absl::OkStatus();
}

// Appends elements [begin, begin + count) of a tensor to `inputs`, as the token ids of one input.
absl::Status AddIds(const std::string& field, const InputTensor& tensor, int64_t begin,
                    int64_t count, std::vector<v1::Input>* inputs) {
  inputs->emplace_back();
  auto* ids = MutableTokenIds(&inputs->back())->mutable_ids();
  ids->Reserve(static_cast<int>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = tensor.Integer(begin + i);
    if (id < 0 || id > std::numeric_limits<uint32_t>::max()) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), "must be 0 to 4294967295, got ", id);
    }
    ids->Add(static_cast<uint32_t>(id));
  }
  return absl::OkStatus();
}

// The valid part of one row of token ids.
struct Part {
  int64_t begin = 0, count = 0;
};

absl::StatusOr<Part> PartFromLength(const std::string& field, int64_t length, int64_t columns) {
  if (length >= 1 && length <= columns) return Part{0, length};
  return InvalidField(field, "must be 1 to ", columns, ", got ", length);
}

absl::StatusOr<Part> PartFromMask(const std::string& field, const InputTensor& mask, int64_t begin,
                                  int64_t columns) {
  Part part;
  for (int64_t i = 0; i < columns; ++i) {
    const int64_t value = mask.Integer(begin + i);
    if (value != 0 && value != 1) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), "must be 0 or 1, got ", value);
    }
    if (value == 0) continue;
    if (part.count == 0) part.begin = i;
    if (i != part.begin + part.count) return InvalidField(field, "must have its ones in one run");
    ++part.count;
  }
  if (part.count == 0) return InvalidField(field, "must have at least one 1");
  return part;
}

// Checks that a tensor has one element, or has one element per input and all of them are equal.
absl::Status CheckSame(const std::string& name, const InputTensor& tensor, size_t batch) {
  QT_RETURN_IF_ERROR(
      Dims(name, tensor, {tensor.elements() == 1 ? 1 : static_cast<int64_t>(batch), 1}).status());
  const bool strings = tensor.type() == kserve::TYPE_STRING;
  const std::vector<absl::string_view> texts =
      strings ? tensor.Strings() : std::vector<absl::string_view>();
  for (int64_t i = 1; i < tensor.elements(); ++i) {
    const bool same = strings ? texts[static_cast<size_t>(i)] == texts[0]
                              : tensor.Integer(i) == tensor.Integer(0);
    if (!same) return InvalidField(name, "must be the same for all inputs of a request");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t InferTask::MemoryToRead(const kserve::ModelInferRequest& request) {
  // An integer of typed contents may take 1 byte in the message, 8 when parsed and 4 as a token id,
  // all at the same time. Call::Parse has reserved the memory of the message and its parsed form;
  // this bound is for the token ids.
  constexpr int64_t kBytesPerByte = 8;
  return request.raw_input_contents_size() > 0
             ? 0
             : kBytesPerByte * static_cast<int64_t>(request.ByteSizeLong());
}

void InferTask::Read(const kserve::ModelInferRequest& request, const absl::Status& reserved) {
  call_.set_model(request.model_name());
  if (request.id().size() <= kMaxIdBytes) id_ = request.id();
  if (IsRequestId(id_)) call_.set_request_id(id_);
  status_ = reserved.ok() ? ReadAll(request) : reserved;
}

absl::Status InferTask::Renamed(const absl::Status& status) {
  return RenamedField(status, {{"call.model", "model_name"},
                               {"call.priority", "parameters.priority"},
                               {"call.adapter", "parameters.adapter"}});
}

absl::Status InferTask::ReadAll(const kserve::ModelInferRequest& request) {
  if (request.id().size() > kMaxIdBytes) {
    return InvalidField("id", "must be at most ", kMaxIdBytes, " bytes, got ", request.id().size());
  }
  QT_RETURN_IF_ERROR(CheckVersion(request.model_version(), "model_version"));
  if (request.parameters_size() > kMaxParameters) {
    return InvalidField("parameters", "must be at most ", kMaxParameters, ", got ",
                        request.parameters_size());
  }
  for (const auto& parameter : request.parameters()) {
    parameters_[parameter.key()] = JsonOf(parameter.value());
  }
  if (const auto priority = parameters_.find("priority"); priority != parameters_.end()) {
    QT_ASSIGN_OR_RETURN(const v1::Priority value, ReadPriority(priority->second));
    call_.set_priority(value);
    parameters_.erase(priority);
  }
  if (const auto adapter = parameters_.find("adapter"); adapter != parameters_.end()) {
    if (!adapter->second.is_string()) return InvalidField("parameters.adapter", "must be a string");
    call_.set_adapter(adapter->second.get<std::string>());
    parameters_.erase(adapter);
  }
  QT_RETURN_IF_ERROR(ReadOutputs(request));
  QT_ASSIGN_OR_RETURN(const InputTensors tensors, InputTensors::Read(request, kInputs));
  typed_ = tensors.typed();
  return ReadInputs(tensors);
}

absl::Status InferTask::ReadOutputs(const kserve::ModelInferRequest& request) {
  if (request.outputs_size() > kMaxOutputs) {
    return InvalidField("outputs", "must be at most ", kMaxOutputs, ", got ",
                        request.outputs_size());
  }
  for (int i = 0; i < request.outputs_size(); ++i) {
    const std::string field = absl::StrCat("outputs[", i, "]");
    for (const auto& parameter : request.outputs(i).parameters()) {
      // The Python client kserve sends binary_data, which only its HTTP protocol needs.
      if (parameter.key() == "binary_data") continue;
      return InvalidField(field + ".parameters",
                          "are not supported (no shared memory, no classification)");
    }
    const std::string& name = request.outputs(i).name();
    if (std::find(outputs_.begin(), outputs_.end(), name) != outputs_.end()) {
      return InvalidField(field + ".name", "is the name of an output before it");
    }
    outputs_.push_back(name);
  }
  return absl::OkStatus();
}

absl::Status InferTask::ReadInputs(const InputTensors& tensors) {
  const bool text = tensors.Find("text_input") != nullptr;
  if (text == (tensors.Find("input_ids") != nullptr)) {
    return InvalidField("inputs", "must hold either text_input or input_ids");
  }
  input_ids_ = !text;
  QT_RETURN_IF_ERROR(text ? ReadTexts(tensors) : ReadIds(tensors));
  QT_RETURN_IF_ERROR(ReadTargets(tensors));
  QT_RETURN_IF_ERROR(ReadContexts(tensors));
  if (const InputTensor* json = tensors.Find("sampling_parameters"); json != nullptr) {
    QT_RETURN_IF_ERROR(CheckSame("sampling_parameters", *json, inputs_.size()));
    sampling_parameters_ = std::string(json->Strings()[0]);
  }
  for (const char* name : {"stream", "exclude_input_in_output"}) {
    const InputTensor* const flag = tensors.Find(name);
    if (flag == nullptr) continue;
    QT_RETURN_IF_ERROR(CheckSame(name, *flag, inputs_.size()));
    if (!parameters_.emplace(name, flag->Integer(0) != 0).second) {
      return InvalidField(name, "is given as an input and as a parameter");
    }
  }
  return absl::OkStatus();
}

absl::Status InferTask::ReadTexts(const InputTensors& tensors) {
  for (const char* name : {"attention_mask", "input_lengths"}) {
    if (tensors.Find(name) != nullptr) return InvalidField(name, "needs input_ids");
  }
  const InputTensor& texts = *tensors.Find("text_input");
  QT_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, Dims("text_input", texts, {-1, 1}));
  QT_RETURN_IF_ERROR(CheckBatch("text_input", dims[0], kMaxInputs));
  flat_ = texts.shape().size() == 1;
  for (const absl::string_view text : texts.Strings()) {
    const std::string field = absl::StrCat("text_input[", inputs_.size(), "]");
    QT_RETURN_IF_ERROR(AddText(field, text, &inputs_));
  }
  return absl::OkStatus();
}

absl::Status InferTask::ReadIds(const InputTensors& tensors) {
  const InputTensor& ids = *tensors.Find("input_ids");
  const InputTensor* const mask = tensors.Find("attention_mask");
  const InputTensor* const lengths = tensors.Find("input_lengths");
  QT_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, Dims("input_ids", ids, {-1, -1}));
  QT_RETURN_IF_ERROR(CheckBatch("input_ids", dims[0], kMaxInputs));
  flat_ = ids.shape().size() == 1;
  if (mask != nullptr && lengths != nullptr) {
    return InvalidField("attention_mask", "cannot be combined with input_lengths");
  }
  if (mask != nullptr) QT_RETURN_IF_ERROR(Dims("attention_mask", *mask, dims).status());
  if (lengths != nullptr) {
    QT_RETURN_IF_ERROR(Dims("input_lengths", *lengths, {dims[0], 1}).status());
  }
  for (int64_t row = 0; row < dims[0]; ++row) {
    const std::string at = absl::StrCat("[", row, "]");
    const int64_t begin = row * dims[1];
    Part part{0, dims[1]};
    if (mask != nullptr) {
      QT_ASSIGN_OR_RETURN(part, PartFromMask("attention_mask" + at, *mask, begin, dims[1]));
    } else if (lengths != nullptr) {
      QT_ASSIGN_OR_RETURN(part,
                          PartFromLength("input_lengths" + at, lengths->Integer(row), dims[1]));
    }
    QT_RETURN_IF_ERROR(AddIds("input_ids" + at, ids, begin + part.begin, part.count, &inputs_));
  }
  return absl::OkStatus();
}

absl::Status InferTask::ReadTargets(const InputTensors& tensors) {
  const InputTensor* const texts = tensors.Find("target_text");
  const InputTensor* const ids = tensors.Find("target_ids");
  const InputTensor* const lengths = tensors.Find("target_lengths");
  const int64_t batch = static_cast<int64_t>(inputs_.size());
  if (texts != nullptr && ids != nullptr) {
    return InvalidField("target_text", "cannot be combined with target_ids");
  }
  if (lengths != nullptr && ids == nullptr) {
    return InvalidField("target_lengths", "needs target_ids");
  }
  if (texts == nullptr && ids == nullptr) return absl::OkStatus();
  target_ids_ = ids != nullptr;
  const char* const name = target_ids_ ? "target_ids" : "target_text";
  QT_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, target_ids_
                                                           ? Dims(name, *ids, {batch, -1, -1})
                                                           : Dims(name, *texts, {batch, -1}));
  QT_RETURN_IF_ERROR(CheckBatch(name, dims[1], kMaxTargets));
  targets_of_each_ = static_cast<size_t>(dims[1]);
  if (lengths != nullptr) {
    QT_RETURN_IF_ERROR(Dims("target_lengths", *lengths, {batch, dims[1]}).status());
  }
  const std::vector<absl::string_view> strings =
      target_ids_ ? std::vector<absl::string_view>() : texts->Strings();
  for (int64_t i = 0; i < batch * dims[1]; ++i) {
    const std::string at = absl::StrCat("[", i / dims[1], "][", i % dims[1], "]");
    if (!target_ids_) {
      QT_RETURN_IF_ERROR(AddText(name + at, strings[static_cast<size_t>(i)], &targets_));
      continue;
    }
    Part part{0, dims[2]};
    if (lengths != nullptr) {
      QT_ASSIGN_OR_RETURN(part,
                          PartFromLength("target_lengths" + at, lengths->Integer(i), dims[2]));
    }
    QT_RETURN_IF_ERROR(AddIds(name + at, *ids, i * dims[2], part.count, &targets_));
  }
  return absl::OkStatus();
}

absl::Status InferTask::ReadContexts(const InputTensors& tensors) {
  const InputTensor* const contexts = tensors.Find("context");
  if (contexts == nullptr) return absl::OkStatus();
  const int64_t batch = static_cast<int64_t>(inputs_.size());
  QT_RETURN_IF_ERROR(Dims("context", *contexts, {batch, 1}).status());
  for (const absl::string_view text : contexts->Strings()) {
    const std::string field = absl::StrCat("context[", contexts_.size(), "]");
    QT_RETURN_IF_ERROR(AddText(field, text, &contexts_));
  }
  return absl::OkStatus();
}

CallSize InferTask::size() const {
  CallSize size;
  size.requests = std::max<int64_t>(1, static_cast<int64_t>(inputs_.size()));
  for (const auto* inputs : {&inputs_, &targets_, &contexts_}) {
    for (const v1::Input& input : *inputs) size.inputs = size.inputs + SizeOf(input);
  }
  return size;
}

int64_t InferTask::ResponseBound(const ModelHost& host, const InputLimits& limits) {
  if (status_.ok()) status_ = Resolve(host);
  if (!status_.ok() || operation_ != RequestKind::kEncode) return 0;
  int64_t largest = 0;
  for (const v1::Input& input : inputs_) {
    largest = std::max(largest, EncodeResponseBound(input, encode_, host, limits));
  }
  return largest * static_cast<int64_t>(inputs_.size()) * (typed_ ? 2 : 1);
}

absl::StatusOr<std::vector<Request>> InferTask::Prepare(const ModelHost& host,
                                                        const InputLimits& limits) {
  QT_RETURN_IF_ERROR(status_);
  std::vector<Request> requests;
  // One request message of Classify takes all inputs.
  const size_t rows = operation_ == RequestKind::kClassify ? 1 : inputs_.size();
  for (size_t row = 0; row < rows; ++row) {
    absl::StatusOr<std::vector<Request>> more = PrepareRow(row, host, limits);
    if (!more.ok()) return InTermsOfTensors(more.status(), row);
    std::move(more->begin(), more->end(), std::back_inserter(requests));
  }
  inputs_.clear();
  targets_.clear();
  return requests;
}

absl::StatusOr<std::vector<Request>> InferTask::PrepareRow(size_t row, const ModelHost& host,
                                                           const InputLimits& limits) {
  switch (operation_) {
    case RequestKind::kGenerate: {
      v1::GenerateRequest one;
      *one.mutable_call() = call_;
      *one.mutable_input() = std::move(inputs_[row]);
      *one.mutable_decoding() = decoding_;
      return GenerateRequests(one, host, limits, stream_);
    }
    case RequestKind::kEncode: {
      QT_ASSIGN_OR_RETURN(Request request,
                          EncodeRequestOf(inputs_[row], encode_, call_, host, limits, "input"));
      std::vector<Request> requests;
      requests.push_back(std::move(request));
      return requests;
    }
    case RequestKind::kScore: {
      v1::ScoreRequest one = score_;
      *one.mutable_call() = call_;
      *one.mutable_input() = std::move(inputs_[row]);
      for (size_t i = 0; i < targets_of_each_; ++i) {
        *one.add_targets() = std::move(targets_[row * targets_of_each_ + i]);
      }
      return ScoreRequests(one, host, limits);
    }
    case RequestKind::kClassify:
      break;
  }
  *classify_.mutable_call() = call_;
  for (v1::Input& input : inputs_) *classify_.add_inputs() = std::move(input);
  for (v1::Input& context : contexts_) *classify_.add_pairs() = std::move(context);
  return classifier_.Prepare(classify_, host, limits);
}

absl::Status InferTask::InTermsOfTensors(const absl::Status& status, size_t row) const {
  const std::string of_row = absl::StrCat("[", row, "]");
  const std::string input = input_ids_ ? "input_ids" : "text_input";
  const std::string target = (target_ids_ ? "target_ids" : "target_text") + of_row;
  return RenamedField(status, {{"inputs[", input + "["},
                               {"input", input + of_row},
                               {"pairs", "context"},
                               {"targets", target},
                               {"decoding.return_scores", "sequence_scores"},
                               {"decoding.logprobs", "output_log_probs"},
                               {"decoding.", "parameters."},
                               {"options.", "parameters."},
                               {"top_k", "parameters.top_k"},
                               {"sliding_window", "parameters.sliding_window"},
                               {"prefix_lm", "parameters.prefix_lm"}});
}

void InferTask::WriteHead(const std::string& model, kserve::ModelInferResponse* response) const {
  response->set_model_name(model);
  response->set_model_version(kModelVersion);
  response->set_id(id_);
}

bool InferTask::Wants(absl::string_view output) const {
  return std::find(outputs_.begin(), outputs_.end(), output) != outputs_.end();
}

bool InferTask::IsAllSent(const v1::GenerateResponse& response) const {
  return std::all_of(
      response.sequences().begin(), response.sequences().end(), [this](const v1::Sequence& one) {
        const auto found = sent_.find(one.index());
        const SentPart part = found == sent_.end() ? SentPart() : found->second;
        return (part.text_bytes >= one.text().size() || !Wants("text_output")) &&
               (part.ids >= static_cast<size_t>(one.token_ids_size()) || !Wants("output_ids"));
      });
}

void InferTask::WriteChunk(const std::string& model, const v1::GenerateChunk& chunk,
                           kserve::ModelInferResponse* response) {
  SentPart& sent = sent_[chunk.index()];
  sent.text_bytes += chunk.text().size();
  sent.ids += static_cast<size_t>(chunk.token_ids_size());
  WriteHead(model, response);
  AddParameter("sequence_index", response)->set_int64_param(chunk.index());
  WriteGeneratedChunk(chunk, {.names = outputs_, .flat = flat_, .typed = typed_}, response);
}

void InferTask::Write(const ModelHost& host, const std::vector<Result>& results,
                      const v1::CallInfo& info, kserve::ModelInferResponse* response) const {
  WriteHead(info.model(), response);
  WriteInfoParameters(info, response);
  OutputOptions options{.names = outputs_, .flat = flat_, .typed = typed_, .sent = sent_};
  switch (operation_) {
    case RequestKind::kGenerate: {
      v1::GenerateRequest request;
      *request.mutable_decoding() = decoding_;
      std::vector<v1::GenerateResponse> responses(results.size());
      for (size_t i = 0; i < results.size(); ++i) WriteGenerate(request, results[i], &responses[i]);
      if (stream_ && empty_final_response_ && IsAllSent(responses[0])) {
        // The chunks have contained all texts and ids, so the last response omits both outputs.
        std::erase_if(options.names, [](const std::string& name) {
          return name == "text_output" || name == "output_ids";
        });
      }
      return WriteGenerated(responses, results, std::max(host.config().pad_id, 0), options,
                            response);
    }
    case RequestKind::kEncode:
      return WriteEncoded(results, encode_.vector_type(), options, response);
    case RequestKind::kScore: {
      std::vector<v1::ScoreResponse> responses(results.size());
      for (size_t i = 0; i < results.size(); ++i) WriteScores(results[i], &responses[i]);
      return WriteScored(responses, results, options, response);
    }
    case RequestKind::kClassify: {
      v1::ClassifyResponse classified;
      classifier_.Write(classify_, host, results, &classified);
      return WriteClassified(classified, results, host.config(), options, response);
    }
  }
}

int64_t InferTask::ResponseMemory(const std::vector<Request>& requests,
                                  const ModelHost& host) const {
  return PaddedResponseBytes(requests, host) * (typed_ ? 2 : 1);
}

}  // namespace quintet
