// Handler of the GenerateStream RPC. Writes chunks of text and ids, then the complete response.
// Chunks that arrive during a write are merged. A client that lets more than 1 MiB of unwritten
// chunks accumulate is disconnected. The engine's threads only store chunks; the threads of
// CallContext::writer pass them to gRPC, because each write takes as long as a system call.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/call.h"
#include "server/message_bytes.h"

namespace quintet {

class GenerateStreamCall final : public Call, public RpcHandler {
 public:
  GenerateStreamCall(CallContext* context, std::shared_ptr<Rpc> rpc)
      : Call(context, std::move(rpc), "GenerateStream") {}

  void OnMessage(grpc::ByteBuffer* message) override;
  void OnInputEnd() override;
  void OnCancel() override { Cancel(); }
  void Abandon() override { Call::Abandon(); }
  RpcActivity activity() const override;
  bool wants_message() const override { return activity() == RpcActivity::kAwaitingClient; }
  RpcOutput Next() override;

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override;
  absl::Status Respond(std::vector<Result> results) override;
  void Ended(RpcOutcome outcome) override;
  void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) override;

  ArenaMessage<v1::GenerateRequest> request_;
  bool return_text_ = true, return_ids_ = true;

  mutable std::mutex mutex_;
  bool received_ = false;
  std::map<int, v1::GenerateChunk> pending_chunks_;  // unwritten chunks by sequence index
  int64_t pending_bytes_ = 0;
  int last_index_ = -1;        // sequence index of the chunk that was written last
  bool write_posted_ = false;  // a writer task is queued that will read pending_chunks_
  RpcOutput final_output_;     // final message and status; written once the call has ended
};

}  // namespace quintet
