#include "server/kserve/stream.h"

#include <algorithm>
#include <map>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "server/kserve/infer.h"
#include "server/message_bytes.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

constexpr int64_t kMaxUnwrittenBytes = 1 << 20;
constexpr char kFinal[] = "triton_final_response";

}  // namespace

// One request of the stream. The stream's lock guards the request's output.
class InferStream::Item final : public Call {
 public:
  Item(CallContext* context, std::shared_ptr<Rpc> rpc, std::shared_ptr<InferStream> stream)
      : Call(context, std::move(rpc), "ModelStreamInfer"), stream_(std::move(stream)) {}

  void Run(grpc::ByteBuffer* message) {
    try {
      kserve::ModelInferRequest request;
      if (!Parse(message, &request)) return;
      parsed_ = true;
      task_.Read(request, ReserveMemory(InferTask::MemoryToRead(request)));
      request = {};
      Start(task_.call(), task_.size());
    } catch (const std::bad_alloc&) {
      EndOutOfMemory();
    }
  }

  // Whether the request could be parsed: only then can an error be sent as its response.
  bool parsed() const { return parsed_; }
  bool ended() const { return ended_; }
  bool has_output() const { return ended_ || !chunks_.empty(); }
  // Removes and returns the chunk of one sequence or, if no chunk is left, the request's final
  // response. Requires has_output(). For a chunk, sets *chunk_bytes. Throws std::bad_alloc.
  grpc::ByteBuffer TakeOutput(int64_t* chunk_bytes) {
    if (chunks_.empty()) return std::exchange(last_, {});
    // Round robin over the sequences, so that a fast sequence does not delay the others.
    auto next = chunks_.upper_bound(last_index_);
    if (next == chunks_.end()) next = chunks_.begin();
    last_index_ = next->first;
    const v1::GenerateChunk chunk = std::move(next->second);
    chunks_.erase(next);
    *chunk_bytes = ChunkBytes(chunk);
    kserve::ModelStreamInferResponse response;
    task_.WriteChunk(model_, chunk, response.mutable_infer_response());
    AddParameter(kFinal, response.mutable_infer_response())->set_bool_param(false);
    return ToBytes(response);
  }
  int64_t DropChunks() {
    int64_t bytes = 0;
    for (const auto& [index, chunk] : chunks_) bytes += ChunkBytes(chunk);
    chunks_.clear();
    return bytes;
  }
  void SetEnded() { ended_ = true; }
  // Turns the last response into an error response.
  void SetError(const RpcOutcome& outcome) {
    kserve::ModelStreamInferResponse response;
    response.set_error_message(outcome.status.error_message());
    task_.WriteHead(model_, response.mutable_infer_response());
    AddParameter("grpc_status", response.mutable_infer_response())
        ->set_int64_param(outcome.status.error_code());
    AddParameter(kFinal, response.mutable_infer_response())->set_bool_param(true);
    last_ = ToBytes(response);
  }

 private:
  int64_t ResponseBound() override {
    model_ = host().options().name;
    return task_.ResponseBound(host(), input_limits());
  }
  int64_t ResponseMemory(const std::vector<Request>& requests) const override {
    return task_.ResponseMemory(requests, host());
  }
  absl::Status Renamed(const absl::Status& status) const override {
    return InferTask::Renamed(status);
  }
  absl::StatusOr<std::vector<Request>> Prepare() override {
    return task_.Prepare(host(), input_limits());
  }
  void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) override {
    try {
      int64_t bytes = 0;
      {
        std::lock_guard<std::mutex> lock(stream_->mutex_);
        v1::GenerateChunk& chunk = chunks_[index];
        bytes -= ChunkBytes(chunk);
        chunk.set_index(static_cast<uint32_t>(index));
        if (task_.Wants("text_output")) chunk.mutable_text()->append(text);
        if (task_.Wants("output_ids")) chunk.mutable_token_ids()->Add(ids.begin(), ids.end());
        bytes += ChunkBytes(chunk);
        if (ChunkBytes(chunk) == 0) chunks_.erase(index);
      }
      if (bytes != 0) stream_->ChunksAdded(bytes);
    } catch (const std::bad_alloc&) {
      // Out of memory: this chunk of the output may be lost, so the RPC is cancelled.
      rpc()->TryCancel();
    }
  }
  absl::Status Respond(std::vector<Result> results) override {
    kserve::ModelStreamInferResponse response;
    v1::CallInfo info;
    FillInfo(results, &info);
    {
      // Drop the chunks that have not been written: this response contains their text and ids.
      std::lock_guard<std::mutex> lock(stream_->mutex_);
      stream_->unwritten_bytes_ -= DropChunks();
    }
    task_.Write(host(), results, info, response.mutable_infer_response());
    AddParameter(kFinal, response.mutable_infer_response())->set_bool_param(true);
    std::vector<Result>().swap(results);
    grpc::ByteBuffer bytes = Serialize(response);
    std::lock_guard<std::mutex> lock(stream_->mutex_);
    last_ = std::move(bytes);
    return absl::OkStatus();
  }
  void Ended(RpcOutcome outcome) override {
    stream_->ItemEnded(std::static_pointer_cast<Item>(shared_from_this()), std::move(outcome));
  }

  const std::shared_ptr<InferStream> stream_;
  InferTask task_{/*streams=*/true};
  std::string model_;                        // name of the served model, once it is known
  std::map<int, v1::GenerateChunk> chunks_;  // unwritten, by index of the sequence
  int last_index_ = -1;                      // sequence of the chunk that was written last
  grpc::ByteBuffer last_;                    // the last response
  bool parsed_ = false, ended_ = false;
};

InferStream::InferStream(CallContext* context, std::shared_ptr<Rpc> rpc)
    : context_(context),
      rpc_(std::move(rpc)),
      grpc_errors_(rpc_->has_metadata("triton_grpc_error", "true")) {}

void InferStream::OnMessage(grpc::ByteBuffer* message) {
  auto item = std::make_shared<Item>(context_, rpc_, shared_from_this());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.has_value()) return;
    items_.push_back(item);
  }
  item->Run(message);
}

void InferStream::OnInputEnd() {
  std::lock_guard<std::mutex> lock(mutex_);
  input_ended_ = true;
}

void InferStream::ChunksAdded(int64_t bytes) {
  bool cut_off;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    unwritten_bytes_ += bytes;
    cut_off = unwritten_bytes_ > kMaxUnwrittenBytes;
    if (write_posted_ && !cut_off) return;
    write_posted_ = true;
  }
  if (cut_off) return rpc_->TryCancel();
  context_->WakeSoon(rpc_);
}

bool InferStream::EndsStream(const RpcOutcome& outcome) const {
  return grpc_errors_ || outcome.status.error_code() == grpc::StatusCode::CANCELLED;
}

void InferStream::ItemEnded(const std::shared_ptr<Item>& item, RpcOutcome outcome) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!outcome.status.ok()) {
      unwritten_bytes_ -= item->DropChunks();
      bool sent = false;
      if (item->parsed() && !EndsStream(outcome)) {
        try {
          item->SetError(outcome);
          sent = true;
        } catch (const std::bad_alloc&) {
          // Out of memory: the status below needs less.
        }
      }
      if (!sent && !failure_.has_value()) failure_ = std::move(outcome);
    }
    item->SetEnded();
  }
  rpc_->Wake();
}

std::vector<std::shared_ptr<InferStream::Item>> InferStream::Items() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {items_.begin(), items_.end()};
}

void InferStream::OnCancel() {
  for (const std::shared_ptr<Item>& item : Items()) item->Cancel();
}

void InferStream::Abandon() {
  for (const std::shared_ptr<Item>& item : Items()) item->Abandon();
}

RpcActivity InferStream::activity() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return items_.empty() ? RpcActivity::kAwaitingClient : RpcActivity::kWorking;
}

bool InferStream::wants_message() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !failure_.has_value() && items_.size() < kMaxItems;
}

RpcOutput InferStream::Next() {
  RpcOutput output;
  std::shared_ptr<Item> written;  // destroyed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  write_posted_ = false;
  written = std::move(written_);
  if (failure_.has_value()) {
    // The stream has failed: all output is dropped, and the stream ends when its last request has
    // ended.
    std::erase_if(items_, [](const auto& item) { return item->ended(); });
    if (items_.empty()) output.end = std::exchange(failure_, RpcOutcome{});
    return output;
  }
  const auto next = std::find_if(items_.begin(), items_.end(),
                                 [](const auto& item) { return item->has_output(); });
  if (next != items_.end()) {
    // Round robin: the request whose output was taken moves to the end of items_.
    const std::shared_ptr<Item> item = *next;
    int64_t chunk_bytes = 0;
    output.message = item->TakeOutput(&chunk_bytes);
    unwritten_bytes_ -= chunk_bytes;
    std::rotate(next, next + 1, items_.end());
    if (chunk_bytes == 0) {
      written_ = item;
      items_.pop_back();
    }
  } else if (items_.empty() && input_ended_) {
    output.end = RpcOutcome{};
  }
  return output;
}

}  // namespace quintet
