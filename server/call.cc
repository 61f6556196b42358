#include "server/call.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "engine/clock.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "server/handlers.h"
#include "server/message_bytes.h"
#include "server/model_info.h"

namespace quintet {
namespace {

// The three constants below estimate the memory of a call, in bytes. They are upper estimates, from
// the sizes of the C++ objects of a call.

// Bytes of memory that every call takes, for the objects of gRPC and of the server.
constexpr int64_t kCallBytes = 8192;
// Bytes of memory per byte of a request message, for the message and its parsed form on an arena. A
// message of token ids below 128 takes up to 16, because an array that grows on an arena leaves its
// old memory there. A message of many tiny inputs takes up to 31.
constexpr int64_t kParsedBytes = 32;
// Bytes of memory per byte of input text, during tokenization.
constexpr int64_t kTokenizedBytes = 48;

FinishReason ReasonOfResult(const absl::StatusOr<Result>& result) {
  if (result.ok()) {
    return result->sequences.empty() ? FinishReason::kDone : result->sequences[0].finish_reason;
  }
  if (absl::IsCancelled(result.status())) return FinishReason::kCancelled;
  if (absl::IsDeadlineExceeded(result.status())) return FinishReason::kDeadline;
  return FinishReason::kError;
}

}  // namespace

// Generators take their seeds from a pool that Abseil fills at its first use. If an allocation
// failed during that, all threads that need a seed would wait for ever.
CallContext::CallContext() { absl::BitGen()(); }

void CallContext::Record(const EndedCall& call) const {
  if (access_log != nullptr) access_log->Write(call.record);
  if (!call.span.recorded) return;
  SpanExporter& exporter = tracer->exporter();
  try {
    exporter.Add(CallSpans(call, MonotonicEpochMicros()));
  } catch (const std::bad_alloc&) {
    exporter.CountLost(1);
  }
}

void CallContext::WakeSoon(std::shared_ptr<Rpc> rpc) const {
  const size_t key = absl::HashOf(rpc.get());
  writer->Post(key, [rpc = std::move(rpc)] { rpc->Wake(); });
}

absl::StatusOr<Priority> CallContext::Authorize(
    std::optional<absl::string_view> authorization) const {
  if (api_keys == nullptr) return Priority::kHigh;
  if (!authorization.has_value()) {
    return absl::UnauthenticatedError("send an API key as 'authorization: Bearer KEY'");
  }
  const std::optional<Priority> highest = api_keys->MaxPriority(*authorization);
  if (!highest.has_value()) return absl::PermissionDeniedError("this API key is not known");
  return *highest;
}

class Call::Sink : public ResponseSink {
 public:
  Sink(Call* call, size_t index) : call_(call), index_(index) {}
  void OnStart() override {
    const std::string& adapter = call_->options_.adapter();
    std::lock_guard<std::mutex> lock(call_->mutex_);
    call_->started_[index_] = true;
    if (!adapter.empty()) call_->host_->metrics().StartedAdapter(adapter);
    if (--call_->not_started_ > 0) return;
    call_->queue_reservation_.Release();
    call_->started_us_ = MonotonicMicros();
  }
  void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) override {
    {
      std::lock_guard<std::mutex> lock(call_->mutex_);
      call_->streamed_tokens_ += static_cast<int64_t>(ids.size());
    }
    call_->OnTokens(index, ids, text);
  }
  void OnDone(absl::StatusOr<Result> result) override {
    call_->OnResult(index_, std::move(result));
  }

 private:
  Call* const call_;
  const size_t index_;
};

Call::Call(CallContext* context, std::shared_ptr<Rpc> rpc, const char* name)
    : context_(context),
      rpc_(std::move(rpc)),
      name_(name),
      origin_(rpc_->origin()),
      span_(StartSpan(context->tracer, origin_.parent, /*remote=*/!origin_.path.empty())),
      arrival_us_(MonotonicMicros()),
      memory_(context->memory, rpc_->connection_bytes()),
      engine_trace_(span_.recorded ? std::make_unique<EngineTrace>() : nullptr) {}

bool Call::Parse(grpc::ByteBuffer* message, google::protobuf::MessageLite* proto) {
  message_bytes_ = kCallBytes + kParsedBytes * static_cast<int64_t>(message->Length());
  if (absl::Status status = memory_.Resize(message_bytes_); !status.ok()) {
    End(status);
    return false;
  }
  if (!FromBytes(message, proto)) {
    EndWith(MalformedRequestOutcome(), "INVALID_FIELD");
    return false;
  }
  return true;
}

grpc::ByteBuffer Call::Serialize(const google::protobuf::MessageLite& answer) {
  grpc::ByteBuffer bytes = ToBytes(answer);
  memory_.Shrink(kCallBytes + static_cast<int64_t>(bytes.Length()));
  return bytes;
}

void Call::Start(const v1::CallOptions& options, const CallSize& size) {
  self_ = shared_from_this();
  try {
    options_ = options;
    request_id_ = options.request_id().empty()
                      ? absl::StrCat("q", context_->next_id.fetch_add(1, std::memory_order_relaxed))
                      : options.request_id();
    size_ = size;
    if (absl::Status status = Admit(); !status.ok()) return End(status);
  } catch (const std::bad_alloc&) {
    EndOutOfMemory();
  }
}

absl::Status Call::Admit() {
  QT_RETURN_IF_ERROR(CheckCallOptions(options_));
  const Priority highest = rpc_->max_priority();
  if (options_.priority() == v1::PRIORITY_UNSPECIFIED) {
    priority_ = std::min(Priority::kNormal, highest);
  } else {
    priority_ = PriorityFromProto(options_.priority());
    QT_RETURN_IF_ERROR(CheckPriority(priority_, highest));
  }
  if (!needs_model()) {
    QT_RETURN_IF_ERROR(ReserveMemory(ResponseBound()));
    PostPreparation();
    return absl::OkStatus();
  }
  // The deadline is computed once, on arrival: later changes of the wall clock have no effect.
  deadline_us_ = arrival_us_ + std::min(rpc_->remaining_us().value_or(context_->default_timeout_us),
                                        context_->max_timeout_us);
  std::string adapter;
  QT_ASSIGN_OR_RETURN(model_, context_->models->FindWithAdapter(options_.model(), &adapter));
  if (!adapter.empty()) {
    if (!options_.adapter().empty() && options_.adapter() != adapter) {
      return absl::InvalidArgumentError("call.adapter: call.model names another adapter");
    }
    options_.set_adapter(adapter);
  }
  std::shared_ptr<ModelHost> host = rpc_->binding().host;
  if (host == nullptr || rpc_->binding().model != model_) {
    QT_ASSIGN_OR_RETURN(host, model_->Acquire());
  }
  QT_RETURN_IF_ERROR(ReserveQueue(host.get()));
  if (host == nullptr) {
    WaitForModel();
    return absl::OkStatus();
  }
  QT_RETURN_IF_ERROR(Bind(std::move(host)));
  PostPreparation();
  return absl::OkStatus();
}

absl::Status Call::ReserveQueue(const ModelHost* host) {
  const std::shared_ptr<const HostOptions> configured =
      host == nullptr ? model_->view().options : nullptr;
  const HostOptions& options = host == nullptr ? *configured : host->options();
  const int64_t most = options.engine.max_queue_requests;
  if (size_.requests > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("inputs: must be at most ", most, " (the queue limit), got ", size_.requests));
  }
  // A call without engine requests takes the queue space of one request until the model is loaded.
  const int64_t requests = host == nullptr ? std::max<int64_t>(size_.requests, 1) : size_.requests;
  // The estimated token count of each input is capped at the maximum input length. A longer text is
  // rejected after tokenization; until then it must not reserve more of the queue than a valid text
  // can.
  const int64_t longest =
      host == nullptr ? int64_t{options.decoding.max_input_tokens} : MaxInputTokens(*host);
  const int64_t tokens =
      std::min(size_.inputs.bytes / 3, size_.requests * longest) + size_.requests;
  queue_reservation_ = model_->admission().TryReserve(requests, tokens, priority_);
  if (queue_reservation_.held()) return absl::OkStatus();
  const Admission& admission = model_->admission();
  return absl::ResourceExhaustedError(absl::StrCat(
      "queue full: ", admission.requests(), " requests (about ", admission.tokens(),
      " tokens) waiting; limits: ", most, " requests, ", options.engine.max_queue_tokens,
      " tokens (75 % of both for low priority); this call: requests ", requests, ", tokens ",
      tokens));
}

void Call::WaitForModel() {
  const uint64_t ticket = model_->Wait(
      deadline_us_, [self = shared_from_this()](absl::StatusOr<std::shared_ptr<ModelHost>> host) {
        self->OnHost(std::move(host));
      });
  bool cancelled;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    wait_ticket_ = ticket;
    cancelled = cancelled_;
  }
  if (cancelled) Cancel();
}

void Call::OnHost(absl::StatusOr<std::shared_ptr<ModelHost>> host) {
  try {
    if (!host.ok()) return End(host.status());
    // Post a task: the thread that has loaded the model must not do the work of the waiting calls.
    context_->preparation->Post({.priority = priority_, .cost_bytes = size_.inputs.bytes},
                                [this, version = *std::move(host)]() mutable {
                                  try {
                                    const absl::Status status = Bind(std::move(version));
                                    if (!status.ok()) return End(status);
                                  } catch (const std::bad_alloc&) {
                                    return EndOutOfMemory();
                                  }
                                  PrepareAndSubmit();
                                });
  } catch (const std::bad_alloc&) {
    EndOutOfMemory();
  }
}

absl::Status Call::Bind(std::shared_ptr<ModelHost> host) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    host_ = std::move(host);
    if (size_.requests == 0) queue_reservation_.Release();
  }
  return ReserveMemory(std::max(kTokenizedBytes * size_.inputs.text_bytes, ResponseBound()));
}

void Call::PostPreparation() {
  context_->preparation->Post({.priority = priority_, .cost_bytes = size_.inputs.bytes},
                              [this] { PrepareAndSubmit(); });
}

InputLimits Call::input_limits() const {
  InputLimits limits;
  limits.max_tokens = MaxInputTokens(*host_);
  limits.max_text_bytes = context_->max_text_bytes;
  limits.vocab = host_->config().vocab;
  return limits;
}

void Call::PrepareAndSubmit() {
  try {
    absl::StatusOr<std::vector<Request>> requests = Prepare();
    if (requests.ok()) SetAdapter(&requests);
    tokenized_us_ = MonotonicMicros();
    if (!requests.ok()) return End(requests.status());
    if (!requests->empty()) {
      const int64_t bytes = ResponseMemory(*requests);
      if (absl::Status status = ReserveMemory(bytes); !status.ok()) return End(status);
    }
    Submit(*std::move(requests));
  } catch (const std::bad_alloc&) {
    EndOutOfMemory();
  }
}

int64_t Call::ResponseMemory(const std::vector<Request>& requests) const {
  return ResponseBytes(requests, *host_);
}

void Call::SetAdapter(absl::StatusOr<std::vector<Request>>* requests) const {
  if (options_.adapter().empty()) return;
  const absl::StatusOr<AdapterHandle> adapter = host_->adapters().Find(options_.adapter());
  if (!adapter.ok()) {
    *requests = absl::NotFoundError(absl::StrCat("call.", adapter.status().message()));
    return;
  }
  for (Request& request : **requests) request.adapter = *adapter;
}

void Call::Submit(std::vector<Request> requests) {
  int64_t tokens = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].priority = priority_;
    requests[i].deadline_us = deadline_us_;
    requests[i].sink = std::make_shared<Sink>(this, i);
    tokens += static_cast<int64_t>(requests[i].input.size());
    max_new_tokens_.push_back(requests[i].decoding.max_new_tokens);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    results_.resize(requests.size());
    started_.resize(requests.size());
    ids_.reserve(requests.size());
    queue_reservation_.Correct(tokens);
    input_tokens_ = tokens;
    not_started_ = requests.size();
    pending_ = requests.size() + 1;
    if (engine_trace_ != nullptr) engine_trace_->SetRequests(requests);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    {
      // After a failure or a cancellation the remaining requests are not submitted.
      std::lock_guard<std::mutex> lock(mutex_);
      if (cancelled_ || !failure_.ok()) {
        pending_ -= requests.size() - i;
        break;
      }
    }
    absl::StatusOr<RequestId> id = SubmitOne(std::move(requests[i]));
    std::lock_guard<std::mutex> lock(mutex_);
    if (id.ok()) {
      host_->metrics().Accepted(name_);
      if (!options_.adapter().empty()) host_->metrics().AcceptedAdapter(options_.adapter());
      ids_.push_back(*id);
      if (cancelled_ || !failure_.ok()) host_->engine().Cancel(*id);
    } else {
      if (failure_.ok()) failure_ = id.status();
      pending_ -= 1;
    }
  }
  bool complete;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    complete = --pending_ == 0;
  }
  if (complete) Complete();
}

absl::StatusOr<RequestId> Call::SubmitOne(Request request) {
  try {
    return host_->engine().Submit(std::move(request));
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

void Call::OnResult(size_t index, absl::StatusOr<Result> result) {
  std::shared_ptr<ModelHost> host;
  Executor* const completion = context_->completion;
  bool complete;
  std::vector<RequestId> rest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    host = host_;
    const FinishReason reason = ReasonOfResult(result);
    host->metrics().Finished(reason, result.ok() ? &*result : nullptr,
                             {max_new_tokens_[index], tokenized_us_ - arrival_us_});
    if (!options_.adapter().empty()) {
      host->metrics().FinishedAdapter(options_.adapter(), started_[index]);
    }
    if (result.ok()) {
      output_tokens_ += result->output_tokens;
      results_[index] = *std::move(result);
    } else if (failure_.ok()) {
      failure_ = result.status();
      try {
        if (reason == FinishReason::kDeadline) {
          failure_ = WithReason(failure_, started_[index] ? kReasonDecoding : kReasonQueued);
        }
        rest = ids_;
      } catch (const std::bad_alloc&) {
        // Out of memory: the list of requests to cancel stays empty, so they run to their end.
      }
    }
    complete = --pending_ == 0;
  }
  // This code runs on the engine thread, which must not call the engine. While results of other
  // requests are missing, another thread may end the call at any time, so the code below uses only
  // local variables unless `complete` is true.
  try {
    if (complete) {
      completion->Post([this] { Complete(); });
    } else if (!rest.empty()) {
      completion->Post([host, rest = std::move(rest)] {
        for (RequestId id : rest) host->engine().Cancel(id);
      });
    }
  } catch (const std::bad_alloc&) {
    if (complete) Complete();
  }
}

void Call::Complete() {
  try {
    absl::Status status;
    std::vector<Result> results;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (ended_) return;
      status = failure_;
      if (status.ok() && cancelled_) status = absl::CancelledError("the call was cancelled");
      results = std::move(results_);
      if (status.ok() && engine_trace_ != nullptr) engine_trace_->SetResults(results);
    }
    if (status.ok()) status = Respond(std::move(results));
    End(status);
  } catch (const std::bad_alloc&) {
    EndOutOfMemory();
  }
}

void Call::End(const absl::Status& status) {
  try {
    EndWith(ToRpcOutcome(Renamed(status), request_id_, absl::Milliseconds(200)), ReasonOf(status));
  } catch (const std::bad_alloc&) {
    EndOutOfMemory();
  }
}

void Call::EndOutOfMemory() { EndWith(OutOfMemoryOutcome(), kReasonOutOfMemory); }

void Call::EndWith(RpcOutcome outcome, const std::string& reason) {
  std::shared_ptr<Call> self;
  std::shared_ptr<ModelHost> host;  // released at the end
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
    queue_reservation_.Release();
    // The call is not freed if it was abandoned, because the engine may still use it.
    if (!abandoned_) self = std::move(self_);
    // After a failed allocation the engine may still run requests of the call, and these use the
    // model version. The version is then released only when the call is freed.
    if (!abandoned_ && pending_ == 0) host = std::move(host_);
  }
  if (!outcome.status.ok() && ids_.empty()) {
    model_ != nullptr ? model_->metrics()->Rejected(reason) : context_->refusals->Rejected(reason);
  }
  Record(outcome, reason);
  Ended(std::move(outcome));
}

void Call::Record(const RpcOutcome& outcome, const std::string& reason) {
  if (context_->access_log == nullptr && !span_.recorded) return;
  EndedCall ended{.span = span_, .path = origin_.path};
  ended.arrival_us = arrival_us_;
  ended.end_us = MonotonicMicros();
  ended.tokenized_us = tokenized_us_;
  AccessRecord& record = ended.record;
  if (IsRequestId(request_id_)) record.request_id = request_id_;
  if (model_ != nullptr) record.model = model_->name();
  record.method = name_;
  record.code = outcome.status.error_code();
  record.reason = reason;
  record.trace_id = span_.context.trace_id;
  record.total_us = ended.end_us - arrival_us_;
  std::unique_ptr<EngineTrace> engine;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    record.input_tokens = input_tokens_;
    record.output_tokens = std::max(output_tokens_, streamed_tokens_);
    ended.started_us = started_us_;
    ended.submitted = started_us_ > 0 || !ids_.empty();
    if (ended.submitted) {
      record.queue_us = (started_us_ > 0 ? started_us_ : ended.end_us) - tokenized_us_;
    }
    engine = std::move(engine_trace_);
  }
  ended.engine = engine.get();
  context_->Record(ended);
}

void Call::Cancel() {
  const std::shared_ptr<Call> self = shared_from_this();
  uint64_t ticket = 0;
  for (size_t i = 0;; ++i) {
    RequestId id;
    std::shared_ptr<ModelHost> host;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      cancelled_ = true;
      ticket = wait_ticket_;
      host = host_;
      if (host == nullptr || i >= ids_.size()) break;
      id = ids_[i];
    }
    host->engine().Cancel(id);
  }
  if (ticket != 0 && model_->StopWaiting(ticket)) {
    End(absl::CancelledError("the call was cancelled"));
  }
}

void Call::Abandon() {
  bool started;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    abandoned_ = true;
    started = std::find(started_.begin(), started_.end(), true) != started_.end();
  }
  End(started ? WithReason(absl::InternalError("the engine stopped while it ran this request"),
                           kReasonEngineFault)
              : absl::UnavailableError("the engine stopped"));
}

void Call::FillInfo(const std::vector<Result>& results, v1::CallInfo* info) const {
  info->set_model(host_->options().name);
  info->set_model_version(host_->version());
  info->set_request_id(request_id_);
  for (const Result& result : results) WriteInfo(result, info);
  v1::Timing* timing = info->mutable_timing();
  const uint64_t tokenize_us = static_cast<uint64_t>(tokenized_us_ - arrival_us_);
  timing->set_tokenize_us(tokenize_us);
  // The engine measures times from the submission of the request; the response reports times from
  // the arrival of the call.
  if (timing->first_token_us() > 0) {
    timing->set_first_token_us(timing->first_token_us() + tokenize_us);
  }
  timing->set_total_us(static_cast<uint64_t>(MonotonicMicros() - arrival_us_));
}

}  // namespace quintet
