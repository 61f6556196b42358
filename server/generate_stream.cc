#include "server/generate_stream.h"

#include <new>
#include <span>
#include <utility>

#include "server/handlers.h"
#include "server/message_bytes.h"
#include "server/oneof.h"
#include "server/proto_conversion.h"

namespace quintet {
namespace {

constexpr int64_t kMaxPendingBytes = 1 << 20;

}  // namespace

void GenerateStreamCall::OnMessage(grpc::ByteBuffer* message) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    received_ = true;
  }
  try {
    if (!Parse(message, request_.get())) return;
    const v1::DecodingOptions& decoding = request_->decoding();
    return_text_ = OrTrue(decoding.has_return_text(), decoding.return_text());
    return_ids_ = OrTrue(decoding.has_return_token_ids(), decoding.return_token_ids());
    Start(request_->call(), {1, SizeOf(request_->input())});
  } catch (const std::bad_alloc&) {
    EndOutOfMemory();
  }
}

void GenerateStreamCall::OnInputEnd() {
  End(absl::InvalidArgumentError("the call has no message: expected one request"));
}

RpcActivity GenerateStreamCall::activity() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return received_ ? RpcActivity::kWorking : RpcActivity::kAwaitingClient;
}

absl::StatusOr<std::vector<Request>> GenerateStreamCall::Prepare() {
  return GenerateRequests(*request_, host(), input_limits(), /*stream=*/true);
}

void GenerateStreamCall::OnTokens(int index, std::span<const int32_t> ids,
                                  const std::string& text) {
  try {
    bool cut_off;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      v1::GenerateChunk& chunk = pending_chunks_[index];
      pending_bytes_ -= ChunkBytes(chunk);
      chunk.set_index(static_cast<uint32_t>(index));
      if (return_text_) chunk.mutable_text()->append(text);
      if (return_ids_) chunk.mutable_token_ids()->Add(ids.begin(), ids.end());
      pending_bytes_ += ChunkBytes(chunk);
      cut_off = pending_bytes_ > kMaxPendingBytes;
      if (write_posted_ && !cut_off) return;
      write_posted_ = true;
    }
    if (cut_off) return rpc()->TryCancel();
    context().WakeSoon(rpc());
  } catch (const std::bad_alloc&) {
    // Out of memory: this chunk of the output may be lost, so the RPC is cancelled.
    rpc()->TryCancel();
  }
}

absl::Status GenerateStreamCall::Respond(std::vector<Result> results) {
  v1::GenerateStreamResponse response;
  auto* complete = SetMember(&response, &v1::GenerateStreamResponse::set_allocated_complete);
  WriteGenerate(*request_, results[0], complete);
  FillInfo(results, complete->mutable_info());
  request_.Reset();
  std::vector<Result>().swap(results);
  grpc::ByteBuffer bytes = Serialize(response);
  std::lock_guard<std::mutex> lock(mutex_);
  final_output_.message = std::move(bytes);
  return absl::OkStatus();
}

void GenerateStreamCall::Ended(RpcOutcome outcome) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!outcome.status.ok()) {
      final_output_.message.reset();
      pending_chunks_.clear();
    }
    final_output_.end = std::move(outcome);
  }
  rpc()->Wake();
}

RpcOutput GenerateStreamCall::Next() {
  RpcOutput output;
  std::lock_guard<std::mutex> lock(mutex_);
  write_posted_ = false;
  if (!pending_chunks_.empty()) {
    // Round robin over the sequences, so that a fast sequence does not delay the others.
    auto next = pending_chunks_.upper_bound(last_index_);
    if (next == pending_chunks_.end()) next = pending_chunks_.begin();
    last_index_ = next->first;
    v1::GenerateStreamResponse response;
    *SetMember(&response, &v1::GenerateStreamResponse::set_allocated_chunk) =
        std::move(next->second);
    pending_bytes_ -= ChunkBytes(response.chunk());
    pending_chunks_.erase(next);
    output.message = ToBytes(response);
  } else if (final_output_.end.has_value()) {
    output = std::exchange(final_output_, {});
  }
  return output;
}

}  // namespace quintet
