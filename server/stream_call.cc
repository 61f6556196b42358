#include "server/stream_call.h"

#include <utility>

#include "engine/clock.h"
#include "kernels/check.h"
#include "server/answers.h"
#include "server/unreadable.h"

namespace quintet {
namespace {

constexpr int64_t kMaxWaitingBytes = 1 << 20;
constexpr int64_t kMaxWriteUs = 30'000'000;

int64_t BytesOf(const v1::GenerateChunk& chunk) {
  return static_cast<int64_t>(chunk.text().size()) + int64_t{4} * chunk.token_ids_size();
}

}  // namespace

GenerateStreamCall::GenerateStreamCall(CallContext* context, grpc::CallbackServerContext* rpc,
                                       const v1::GenerateRequest* request)
    : Call(context, rpc, "GenerateStream"),
      rpc_(rpc),
      request_(*request),
      return_text_(!request->decoding().has_return_text() || request->decoding().return_text()),
      return_ids_(!request->decoding().has_return_token_ids() ||
                  request->decoding().return_token_ids()) {}

absl::StatusOr<std::vector<Request>> GenerateStreamCall::Prepare() {
  return GenerateRequests(request_, host(), input_limits(), /*stream=*/true);
}

void GenerateStreamCall::OnTokens(int index, absl::Span<const int32_t> ids,
                                  const std::string& text) {
  std::unique_lock<std::mutex> lock(mutex_);
  v1::GenerateChunk& chunk = waiting_[index];
  waiting_bytes_ -= BytesOf(chunk);
  chunk.set_index(static_cast<uint32_t>(index));
  if (return_text_) chunk.mutable_text()->append(text);
  if (return_ids_) chunk.mutable_token_ids()->Add(ids.begin(), ids.end());
  waiting_bytes_ += BytesOf(chunk);
  if (waiting_bytes_ > kMaxWaitingBytes) rpc_->TryCancel();
  if (writing_ || posted_) return;
  posted_ = true;
  lock.unlock();
  context().writer->Post([this] {
    std::unique_lock<std::mutex> lock(mutex_);
    posted_ = false;
    FinishUnlocked(std::move(lock));
  });
}

absl::Status GenerateStreamCall::Respond(std::vector<Result> results) {
  auto complete = std::make_unique<v1::GenerateStreamResponse>();
  WriteGenerate(request_, results[0], complete->mutable_complete());
  FillInfo(results, complete->mutable_complete()->mutable_info());
  std::lock_guard<std::mutex> lock(mutex_);
  complete_ = std::move(complete);
  return absl::OkStatus();
}

void GenerateStreamCall::FinishRpc(const RpcOutcome& outcome) {
  std::unique_lock<std::mutex> lock(mutex_);
  finishing_ = true;
  status_ = outcome.status;
  AddPushback(outcome, rpc_);
  FinishUnlocked(std::move(lock));
}

void GenerateStreamCall::OnWriteDone(bool ok) {
  std::unique_lock<std::mutex> lock(mutex_);
  writing_ = false;
  if (!ok) {
    // The client is gone: nothing more can be written.
    waiting_.clear();
    waiting_bytes_ = 0;
    complete_.reset();
  }
  FinishUnlocked(std::move(lock));
}

bool GenerateStreamCall::NextMessage() {
  message_.Clear();
  if (!waiting_.empty()) {
    // In turn: a sequence that always has something must not hold up the others.
    auto next = waiting_.upper_bound(last_index_);
    if (next == waiting_.end()) next = waiting_.begin();
    last_index_ = next->first;
    *message_.mutable_chunk() = std::move(next->second);
    waiting_bytes_ -= BytesOf(message_.chunk());
    waiting_.erase(next);
    return true;
  }
  if (complete_ != nullptr) {
    message_ = std::move(*complete_);
    complete_.reset();
    return true;
  }
  return false;
}

bool GenerateStreamCall::Advance() {
  if (writing_ || finished_) return false;
  if ((!finishing_ || status_.ok()) && NextMessage()) {
    writing_ = true;
    write_started_us_ = MonotonicMicros();
    StartWrite(&message_);
    return false;
  }
  finished_ = finishing_ && !posted_;
  return finished_;
}

void GenerateStreamCall::FinishUnlocked(std::unique_lock<std::mutex> lock) {
  const bool finish = Advance();
  lock.unlock();
  if (finish) Finish(status_);
}

void GenerateStreamCall::CancelIfStuck(int64_t now_us) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (writing_ && now_us - write_started_us_ > kMaxWriteUs) rpc_->TryCancel();
}

// One message of an EncodeStream.
class EncodeStreamReactor::Item final : public Call {
 public:
  Item(EncodeStreamReactor* stream, v1::EncodeStreamRequest request)
      : Call(stream->context_, stream->rpc_, "EncodeStream"),
        stream_(stream),
        request_(std::move(request)) {}

  void Run() { Start(request_.call(), {1, BytesOf(request_.input())}); }
  v1::EncodeStreamResponse& answer() { return answer_; }

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override {
    absl::StatusOr<Request> one = EncodeRequestOf(request_.input(), request_.options(),
                                                  request_.call(), host(), input_limits(), "input");
    if (!one.ok()) return one.status();
    std::vector<Request> requests;
    requests.push_back(*std::move(one));
    return requests;
  }
  absl::Status Respond(std::vector<Result> results) override {
    answer_.set_item_id(request_.item_id());
    WriteEmbedding(results[0], request_.options().vector_type(), answer_.mutable_embedding());
    FillInfo(results, answer_.mutable_info());
    return absl::OkStatus();
  }
  void FinishRpc(const RpcOutcome& outcome) override { stream_->Done(this, outcome); }

  EncodeStreamReactor* const stream_;
  const v1::EncodeStreamRequest request_;
  v1::EncodeStreamResponse answer_;
};

EncodeStreamReactor::EncodeStreamReactor(CallContext* context, grpc::CallbackServerContext* rpc)
    : context_(context), rpc_(rpc) {
  StartRead(&read_);
}

void EncodeStreamReactor::OnReadDone(bool ok) {
  Item* item = nullptr;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    reading_ = false;
    if (!ok) {
      no_more_ = true;
      return AdvanceAndUnlock(std::move(lock));
    }
    v1::EncodeStreamRequest request;
    if (!grpc::SerializationTraits<v1::EncodeStreamRequest>::Deserialize(&read_, &request).ok()) {
      Fail(UnreadableMessage());
      return AdvanceAndUnlock(std::move(lock));
    }
    item = new Item(this, std::move(request));
    items_.insert(item);
  }
  item->Run();
  std::unique_lock<std::mutex> lock(mutex_);
  AdvanceAndUnlock(std::move(lock));
}

void EncodeStreamReactor::Done(Item* item, const RpcOutcome& outcome) {
  std::unique_lock<std::mutex> lock(mutex_);
  items_.erase(item);
  if (outcome.status.ok()) {
    answers_.push_back(std::move(item->answer()));
  } else {
    Fail(outcome);
  }
  item->Close();
  AdvanceAndUnlock(std::move(lock));
}

// An error is the RPC's status: what has been asked before it is dropped.
void EncodeStreamReactor::Fail(const RpcOutcome& outcome) {
  no_more_ = true;
  if (!status_.ok()) return;
  status_ = outcome.status;
  AddPushback(outcome, rpc_);
}

void EncodeStreamReactor::OnWriteDone(bool ok) {
  std::unique_lock<std::mutex> lock(mutex_);
  writing_ = false;
  if (!ok) {
    answers_.clear();
    no_more_ = true;
  }
  AdvanceAndUnlock(std::move(lock));
}

void EncodeStreamReactor::OnCancel() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Item* item : items_) item->Cancelled();
}

void EncodeStreamReactor::AdvanceAndUnlock(std::unique_lock<std::mutex> lock) {
  if (!writing_ && !answers_.empty() && status_.ok()) {
    bool own_buffer = false;
    written_.Clear();  // gRPC serializes into an empty one only
    const grpc::Status written = grpc::SerializationTraits<v1::EncodeStreamResponse>::Serialize(
        answers_.front(), &written_, &own_buffer);
    QT_CHECK(written.ok());
    answers_.pop_front();
    writing_ = true;
    StartWrite(&written_);
  }
  if (!reading_ && !no_more_ && items_.size() + answers_.size() < kMaxOpenItems) {
    reading_ = true;
    StartRead(&read_);
  }
  // A read that still waits for the client does not hold up an error.
  const bool all_answered = no_more_ && !reading_ && answers_.empty();
  const bool finish = !finished_ && !writing_ && items_.empty() && (all_answered || !status_.ok());
  finished_ = finished_ || finish;
  lock.unlock();
  if (finish) Finish(status_);
}

}  // namespace quintet
