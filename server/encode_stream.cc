#include "server/encode_stream.h"

#include <new>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/handlers.h"
#include "server/message_bytes.h"

namespace quintet {

class EncodeStream::Item final : public Call {
 public:
  Item(CallContext* context, std::shared_ptr<Rpc> rpc, std::shared_ptr<EncodeStream> stream)
      : Call(context, std::move(rpc), "EncodeStream"), stream_(std::move(stream)) {}

  void Run(grpc::ByteBuffer* message) {
    try {
      if (Parse(message, request_.get())) Start(request_->call(), {1, SizeOf(request_->input())});
    } catch (const std::bad_alloc&) {
      EndOutOfMemory();
    }
  }
  grpc::ByteBuffer TakeResponse() { return std::move(response_); }

 private:
  int64_t ResponseBound() override {
    return EncodeResponseBound(request_->input(), request_->options(), host(), input_limits());
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    QT_ASSIGN_OR_RETURN(Request request,
                        EncodeRequestOf(request_->input(), request_->options(), request_->call(),
                                        host(), input_limits(), "input"));
    std::vector<Request> requests;
    requests.push_back(std::move(request));
    return requests;
  }
  absl::Status Respond(std::vector<Result> results) override {
    v1::EncodeStreamResponse response;
    response.set_item_id(request_->item_id());
    WriteEmbedding(results[0], request_->options().vector_type(), response.mutable_embedding());
    FillInfo(results, response.mutable_info());
    std::vector<Result>().swap(results);
    request_.Reset();
    response_ = Serialize(response);
    return absl::OkStatus();
  }
  void Ended(RpcOutcome outcome) override {
    stream_->ItemEnded(std::static_pointer_cast<Item>(shared_from_this()), std::move(outcome));
  }

  const std::shared_ptr<EncodeStream> stream_;
  ArenaMessage<v1::EncodeStreamRequest> request_;
  grpc::ByteBuffer response_;
};

EncodeStream::EncodeStream(CallContext* context, std::shared_ptr<Rpc> rpc)
    : context_(context), rpc_(std::move(rpc)) {
  completed_.reserve(kMaxItems);  // ItemEnded must not allocate
}

void EncodeStream::OnMessage(grpc::ByteBuffer* message) {
  auto item = std::make_shared<Item>(context_, rpc_, shared_from_this());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.has_value()) return;
    items_.insert(item);
  }
  item->Run(message);
}

void EncodeStream::OnInputEnd() {
  std::lock_guard<std::mutex> lock(mutex_);
  input_ended_ = true;
}

void EncodeStream::ItemEnded(std::shared_ptr<Item> item, RpcOutcome outcome) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    items_.erase(item);
    if (outcome.status.ok() && !failure_.has_value()) {
      completed_.push_back(std::move(item));
    } else if (!failure_.has_value()) {
      failure_ = std::move(outcome);
      completed_.clear();
    }
  }
  rpc_->Wake();
}

std::vector<std::shared_ptr<EncodeStream::Item>> EncodeStream::Items() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {items_.begin(), items_.end()};
}

void EncodeStream::OnCancel() {
  for (const std::shared_ptr<Item>& item : Items()) item->Cancel();
}

void EncodeStream::Abandon() {
  for (const std::shared_ptr<Item>& item : Items()) item->Abandon();
}

RpcActivity EncodeStream::activity() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return items_.empty() && completed_.empty() ? RpcActivity::kAwaitingClient
                                              : RpcActivity::kWorking;
}

bool EncodeStream::wants_message() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !failure_.has_value() && items_.size() + completed_.size() < kMaxItems;
}

RpcOutput EncodeStream::Next() {
  RpcOutput output;
  std::shared_ptr<Item> written;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  written = std::move(written_);
  if (!completed_.empty()) {
    written_ = std::move(completed_.front());
    completed_.erase(completed_.begin());
    output.message = written_->TakeResponse();
  } else if (items_.empty() && failure_.has_value()) {
    output.end = std::exchange(failure_, RpcOutcome{});
  } else if (items_.empty() && input_ended_) {
    output.end = RpcOutcome{};
  }
  return output;
}

}  // namespace quintet
