#include "server/rpc.h"

#include <new>
#include <utility>

#include "engine/clock.h"
#include "server/model_directory.h"

namespace quintet {
namespace {

RpcOutcome DrainingOutcome() {
  return ToRpcOutcome(absl::UnavailableError("the server is shutting down"), "",
                      absl::Milliseconds(200));
}

RpcOutcome IdleOutcome(bool first) {
  return ToRpcOutcome(WithReason(absl::DeadlineExceededError(
                                     first ? "the client sent no message in time"
                                           : "the stream was idle: the client sent no message and "
                                             "none of its requests was in progress"),
                                 kReasonIdle),
                      "", absl::ZeroDuration());
}

}  // namespace

const ModelBinding& Rpc::binding() const {
  static const ModelBinding* const none = new ModelBinding();
  return *none;
}

Rpc::Rpc(RpcRegistry* open, RpcRegistry::Registration registration, const ClientTimeouts& timeouts,
         Priority max_priority)
    : open_(open),
      registration_(std::move(registration)),
      timeouts_(timeouts),
      max_priority_(max_priority),
      active_us_(MonotonicMicros()) {}

void Rpc::Start(std::shared_ptr<RpcHandler> handler) {
  open_->Add(this);
  std::lock_guard<std::mutex> lock(mutex_);
  self_ = shared_from_this();
  handler_ = std::move(handler);
  Advance();
}

void Rpc::Wake() {
  std::lock_guard<std::mutex> lock(mutex_);
  active_us_ = MonotonicMicros();
  Advance();
}

void Rpc::Refuse(RpcOutcome outcome) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!refused_.has_value()) refused_ = std::move(outcome);
  Advance();
}

void Rpc::OnRead(bool ok) {
  bool drop;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    reading_ = false;
    input_ended_ = !ok;
    seen_message_ |= ok;
    drop = finished_ || client_gone_ || refused_.has_value();
    handling_ = !drop;
  }
  if (drop) {
    read_.Clear();
  } else {
    try {
      ok ? handler_->OnMessage(&read_) : handler_->OnInputEnd();
    } catch (const std::bad_alloc&) {
      Refuse(OutOfMemoryOutcome());
      handler_->OnCancel();
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  handling_ = false;
  active_us_ = MonotonicMicros();
  Advance();
}

void Rpc::OnWritten(bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  writing_ = false;
  written_.Clear();
  client_gone_ |= !ok;
  active_us_ = MonotonicMicros();
  Advance();
}

void Rpc::OnCancelled() {
  std::shared_ptr<RpcHandler> handler;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    client_gone_ = true;
    handler = handler_;
  }
  if (handler == nullptr) return;
  try {
    handler->OnCancel();
  } catch (const std::bad_alloc&) {
    // Cancelling the requests needs memory. If there is none, the requests run to their end.
  }
  Wake();
}

void Rpc::OnEnded() {
  open_->Remove(this);
  std::shared_ptr<RpcHandler> handler;
  std::shared_ptr<Rpc> self;
  std::lock_guard<std::mutex> lock(mutex_);
  handler = std::move(handler_);
  self = std::move(self_);
}

void Rpc::Check(int64_t now_us, bool draining) {
  bool cut_off = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (finished_ || writing_) {
      cut_off = now_us - write_us_ > timeouts_.write_us;
    } else if (handler_ != nullptr && !handling_) {
      const RpcActivity activity = handler_->activity();
      const int64_t timeout_us =
          seen_message_ ? timeouts_.next_message_us : timeouts_.first_message_us;
      if (refused_.has_value()) {
        // The RPC already has an error status. It ends as soon as none of its requests is in
        // progress.
      } else if (activity != RpcActivity::kWorking && draining) {
        refused_ = DrainingOutcome();
      } else if (activity == RpcActivity::kAwaitingClient && now_us - active_us_ > timeout_us) {
        refused_ = IdleOutcome(/*first=*/!seen_message_);
      }
      Advance();
    }
  }
  if (cut_off) TryCancel();
}

bool Rpc::working() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return finished_ || writing_ ||
         (handler_ != nullptr && handler_->activity() == RpcActivity::kWorking);
}

void Rpc::Abandon() {
  std::shared_ptr<RpcHandler> handler;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    handler = handler_;
  }
  if (handler != nullptr) handler->Abandon();
}

void Rpc::Advance() {
  if (finished_ || handler_ == nullptr) return;
  if (!writing_ && !handling_ && !TryWrite()) {
    // There is no memory to build the output. All output is dropped from now on, and the RPC ends
    // with an error. If ending the RPC also fails, the next Check retries.
    if (!refused_.has_value()) refused_ = OutOfMemoryOutcome();
    TryWrite();
  }
  if (finished_ || reading_ || input_ended_ || handling_ || client_gone_ || refused_.has_value())
    return;
  if (!handler_->wants_message()) return;
  reading_ = true;
  StartRead(&read_);
}

bool Rpc::TryWrite() {
  try {
    Write();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void Rpc::Write() {
  const bool drop = client_gone_ || refused_.has_value();
  RpcOutput output = handler_->Next();
  while (drop && output.message.has_value() && !output.end.has_value()) output = handler_->Next();
  if (output.message.has_value() && !drop) {
    written_ = *std::move(output.message);
    write_us_ = MonotonicMicros();
    if (output.end.has_value()) {
      finished_ = true;
      StartEnd(&written_, *output.end);
    } else {
      writing_ = true;
      StartWrite(&written_);
    }
  } else if (output.end.has_value()) {
    Finish(refused_.has_value() ? *refused_ : *output.end);
  } else if (drop && handler_->activity() != RpcActivity::kWorking) {
    Finish(refused_.has_value() ? *refused_ : RpcOutcome{grpc::Status::CANCELLED, ""});
  }
}

void Rpc::Finish(const RpcOutcome& outcome) {
  finished_ = true;
  write_us_ = MonotonicMicros();
  StartEnd(nullptr, outcome);
}

}  // namespace quintet
