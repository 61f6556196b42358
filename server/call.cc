#include "server/call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/clock.h"

namespace quintet {
namespace {

// Remaining time of a gRPC deadline, taken once on arrival: later changes of the wall clock do not
// matter.
int64_t RemainingMicros(const grpc::CallbackServerContext& rpc) {
  const auto left = rpc.deadline() - std::chrono::system_clock::now();
  return std::chrono::duration_cast<std::chrono::microseconds>(left).count();
}

bool HasDeadline(const grpc::CallbackServerContext& rpc) {
  return rpc.deadline() < std::chrono::system_clock::now() + std::chrono::hours(24 * 365);
}

}  // namespace

absl::StatusOr<ModelHost*> CallContext::Find(const std::string& model) const {
  ModelHost* found = nullptr;
  if (model.empty()) {
    if (hosts.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat("call.model: must name one of the ",
                                                     hosts.size(), " models loaded, got none"));
    }
    found = hosts[0];
  }
  for (ModelHost* host : hosts) {
    if (host->options().name == model) found = host;
  }
  if (found == nullptr) return absl::NotFoundError("call.model: no model of this name is loaded");
  return found;
}

absl::Status CallContext::Authorize(const grpc::ServerContextBase& rpc) const {
  if (api_keys == nullptr) return absl::OkStatus();
  const auto found = rpc.client_metadata().find("authorization");
  if (found == rpc.client_metadata().end()) {
    return absl::UnauthenticatedError("send an API key as 'authorization: Bearer KEY'");
  }
  if (!api_keys->Allows({found->second.data(), found->second.size()})) {
    return absl::PermissionDeniedError("this API key is not known");
  }
  return absl::OkStatus();
}

class Call::Sink : public ResponseSink {
 public:
  Sink(Call* call, size_t index) : call_(call), index_(index) {}
  void OnStart() override {
    std::lock_guard<std::mutex> lock(call_->mutex_);
    call_->started_[index_] = true;
    if (--call_->not_started_ == 0) call_->place_.Release();
  }
  void OnTokens(int index, absl::Span<const int32_t> ids, const std::string& text) override {
    call_->OnTokens(index, ids, text);
  }
  void OnDone(absl::StatusOr<Result> result) override {
    call_->OnResult(index_, std::move(result));
  }

 private:
  Call* const call_;
  const size_t index_;
};

Call::Call(CallContext* context, grpc::CallbackServerContext* rpc, const char* name)
    : context_(context), rpc_(rpc), name_(name), arrival_us_(MonotonicMicros()) {}

void Call::Start(const v1::CallOptions& options, const CallSize& size) {
  context_->calls.Add(this);
  options_ = options;
  request_id_ = options.request_id().empty()
                    ? absl::StrCat("q", context_->next_id.fetch_add(1, std::memory_order_relaxed))
                    : options.request_id();
  if (absl::Status status = Enter(size); !status.ok()) return End(status);
  context_->executor->Post([this] { PrepareAndSubmit(); });
}

absl::Status Call::Enter(const CallSize& size) {
  if (absl::Status status = context_->Authorize(*rpc_); !status.ok()) return status;
  if (absl::Status status = CheckCallOptions(options_); !status.ok()) return status;
  absl::StatusOr<ModelHost*> host = context_->Find(options_.model());
  if (!host.ok()) return host.status();
  host_ = *host;
  if (!host_->ready()) {
    const bool loading = host_->state() == ModelHost::State::kLoading;
    return absl::UnavailableError(loading ? "the model is loading" : "the server is shutting down");
  }
  const int64_t most = host_->options().engine.max_queue_requests;
  if (size.requests > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("inputs: must be at most ", most, ", all that may wait, got ", size.requests));
  }
  const int64_t timeout_us = HasDeadline(*rpc_)
                                 ? std::min(RemainingMicros(*rpc_), context_->max_timeout_us)
                                 : context_->default_timeout_us;
  deadline_us_ = arrival_us_ + timeout_us;
  // No input brings more tokens than the limit to the queue: a text that is far too long must not
  // fill it until it has been tokenized and refused.
  const int64_t tokens =
      std::min(size.input_bytes / 3, size.requests * input_limits().max_tokens) + size.requests;
  place_ = host_->admission().TryReserve(size.requests, tokens, ReadPriority(options_.priority()));
  if (place_.held()) return absl::OkStatus();
  const Admission& admission = host_->admission();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the queue is full: ", admission.requests(), " requests of about ", admission.tokens(),
      " tokens are waiting, limits ", most, " and ", host_->options().engine.max_queue_tokens,
      " (of low priority: three quarters), this call brings ", size.requests, " and ", tokens));
}

InputLimits Call::input_limits() const {
  InputLimits limits;
  limits.max_tokens = host_->options().decoding.max_input_tokens;
  if (host_->config().family == Family::kGpt2) {
    limits.max_tokens = std::min(limits.max_tokens, host_->config().max_positions);
  }
  limits.max_text_bytes = context_->max_text_bytes;
  limits.vocab = host_->config().vocab;
  return limits;
}

void Call::PrepareAndSubmit() {
  absl::StatusOr<std::vector<Request>> requests = Prepare();
  tokenized_us_ = MonotonicMicros();
  if (!requests.ok()) return End(requests.status());
  Submit(*std::move(requests));
}

void Call::Submit(std::vector<Request> requests) {
  int64_t tokens = 0;
  for (const Request& request : requests) tokens += static_cast<int64_t>(request.input.size());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    place_.Correct(tokens);
    not_started_ = requests.size();
    pending_ = requests.size() + 1;
    results_.resize(requests.size());
    started_.resize(requests.size());
    for (const Request& request : requests)
      max_new_tokens_.push_back(request.decoding.max_new_tokens);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    Request& request = requests[i];
    request.priority = ReadPriority(options_.priority());
    request.deadline_us = deadline_us_;
    request.sink = std::make_shared<Sink>(this, i);
    {
      // A failure or a cancelled call ends the rest before it starts.
      std::lock_guard<std::mutex> lock(mutex_);
      if (cancelled_ || !failure_.ok()) {
        pending_ -= requests.size() - i;
        break;
      }
    }
    absl::StatusOr<RequestId> id = host_->engine().Submit(std::move(request));
    std::lock_guard<std::mutex> lock(mutex_);
    if (id.ok()) {
      host_->metrics().Accepted(name_);
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

void Call::OnResult(size_t index, absl::StatusOr<Result> result) {
  ModelHost* const host = host_;
  Executor* const executor = context_->executor;
  bool complete;
  std::vector<RequestId> rest;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool started = started_[index];
    FinishReason reason = FinishReason::kDone;
    if (result.ok()) {
      if (!result->sequences.empty()) reason = result->sequences[0].finish_reason;
    } else if (absl::IsCancelled(result.status())) {
      reason = FinishReason::kCancelled;
    } else if (absl::IsDeadlineExceeded(result.status())) {
      reason = FinishReason::kDeadline;
    } else {
      reason = FinishReason::kError;
    }
    host_->metrics().Finished(reason, result.ok() ? &*result : nullptr,
                              {max_new_tokens_[index], tokenized_us_ - arrival_us_});
    if (result.ok()) {
      results_[index] = *std::move(result);
    } else if (failure_.ok()) {
      failure_ = result.status();
      if (reason == FinishReason::kDeadline) {
        failure_ = WithReason(failure_, started ? kReasonDecoding : kReasonQueued);
      }
      rest = ids_;
    }
    complete = --pending_ == 0;
  }
  // On the engine's thread, which must not call the engine. Unless this was the last result,
  // another thread may end the call at any moment: nothing of it is touched from here on.
  if (!rest.empty()) {
    executor->Post([host, rest] {
      for (RequestId id : rest) host->engine().Cancel(id);
    });
  }
  if (complete) executor->Post([this] { Complete(); });
}

void Call::Complete() {
  absl::Status status;
  std::vector<Result> results;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    status = failure_;
    if (status.ok() && cancelled_) status = absl::CancelledError("the call was cancelled");
    results = std::move(results_);
  }
  if (status.ok()) status = Respond(std::move(results));
  End(status);
}

void Call::End(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
    place_.Release();
  }
  if (!status.ok() && ids_.empty()) {
    const std::string reason = ReasonOf(status);
    host_ != nullptr ? host_->metrics().Rejected(reason) : context_->refusals->Rejected(reason);
  }
  FinishRpc(ToRpcOutcome(status, request_id_, absl::Milliseconds(200)));
}

void Call::Cancelled() {
  std::vector<RequestId> ids;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (RequestId id : ids) host_->engine().Cancel(id);
}

void Call::Abandon() {
  bool started;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    started = std::find(started_.begin(), started_.end(), true) != started_.end();
  }
  End(started ? WithReason(absl::InternalError("the engine stopped while it ran this request"),
                           kReasonEngineFault)
              : absl::UnavailableError("the engine stopped"));
}

void Call::FillInfo(const std::vector<Result>& results, v1::CallInfo* info) const {
  info->set_model(host_->options().name);
  info->set_request_id(request_id_);
  for (const Result& result : results) WriteInfo(result, info);
  v1::Timing* timing = info->mutable_timing();
  const uint64_t tokenize_us = static_cast<uint64_t>(tokenized_us_ - arrival_us_);
  timing->set_tokenize_us(tokenize_us);
  // The engine's clock starts when it gets the request; the client's has run since arrival.
  if (timing->first_token_us() > 0) {
    timing->set_first_token_us(timing->first_token_us() + tokenize_us);
  }
  timing->set_total_us(static_cast<uint64_t>(MonotonicMicros() - arrival_us_));
}

}  // namespace quintet
