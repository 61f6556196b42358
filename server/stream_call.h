// GenerateStream and EncodeStream: one write outstanding, later chunks merge. A reader that leaves
// 1 MiB waiting, or does not take a message for 30 s, is cancelled. The engine's thread only leaves
// its chunks: handing one to gRPC takes as long as a system call, and is the writer's work.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "quintet/v1/inference.grpc.pb.h"
#include "server/call.h"

namespace quintet {

class GenerateStreamCall final : public grpc::ServerWriteReactor<v1::GenerateStreamResponse>,
                                 public Call {
 public:
  GenerateStreamCall(CallContext* context, grpc::CallbackServerContext* rpc,
                     const v1::GenerateRequest* request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { Cancelled(); }
  void OnDone() override { Close(); }

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override;
  absl::Status Respond(std::vector<Result> results) override;
  void FinishRpc(const RpcOutcome& outcome) override;
  void OnTokens(int index, absl::Span<const int32_t> ids, const std::string& text) override;
  void CancelIfStuck(int64_t now_us) override;

  // With mutex_ held: starts the next write; true when everything is out and the caller must call
  // Finish, without the mutex, since the object may go with it.
  bool Advance();
  void FinishUnlocked(std::unique_lock<std::mutex> lock);
  bool NextMessage();

  grpc::CallbackServerContext* const rpc_;
  const v1::GenerateRequest& request_;
  bool return_text_, return_ids_;

  std::mutex mutex_;
  std::map<int, v1::GenerateChunk> waiting_;  // by sequence
  int64_t waiting_bytes_ = 0;
  int last_index_ = -1;  // of the chunk written last
  std::unique_ptr<v1::GenerateStreamResponse> complete_;
  v1::GenerateStreamResponse message_;  // being written
  bool writing_ = false, finishing_ = false, finished_ = false;
  bool posted_ = false;  // to the writer, which has yet to look: until then the object stays
  int64_t write_started_us_ = 0;
  grpc::Status status_;
};

// EncodeStream: each message is a call of its own; replies leave in the order of completion. One
// that cannot be read ends the stream with INVALID_ARGUMENT.
class EncodeStreamReactor final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  EncodeStreamReactor(CallContext* context, grpc::CallbackServerContext* rpc);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  class Item;
  // At most this many items are with the engine; reading waits beyond it, which is HTTP/2's
  // back-pressure on the client.
  static constexpr size_t kMaxOpenItems = 64;

  void Done(Item* item, const RpcOutcome& outcome);
  // With mutex_ held: nothing more is read, and this is the stream's status unless it has one.
  void Fail(const RpcOutcome& outcome);
  void AdvanceAndUnlock(std::unique_lock<std::mutex> lock);

  CallContext* const context_;
  grpc::CallbackServerContext* const rpc_;
  std::mutex mutex_;
  grpc::ByteBuffer read_, written_;  // v1::EncodeStreamRequest, v1::EncodeStreamResponse
  std::set<Item*> items_;
  std::deque<v1::EncodeStreamResponse> answers_;
  bool reading_ = true, writing_ = false, no_more_ = false, finished_ = false;
  grpc::Status status_;
};

}  // namespace quintet
