// GenerateStream: chunks of text and ids, then the complete answer. Chunks that are made while one
// is being written are merged; a reader that leaves 1 MiB of them waiting is cut off. The engine's
// thread only stores its chunks: to hand one to gRPC takes as long as a system call and is the
// writer thread's work.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/call.h"

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
  bool wants_message() const override { return activity() == RpcActivity::kAwaitsClient; }
  RpcOutput Next() override;

 private:
  absl::StatusOr<std::vector<Request>> Prepare() override;
  absl::Status Respond(std::vector<Result> results) override;
  void Ended(RpcOutcome outcome) override;
  void OnTokens(int index, absl::Span<const int32_t> ids, const std::string& text) override;

  v1::GenerateRequest request_;
  bool return_text_ = true, return_ids_ = true;

  mutable std::mutex mutex_;
  bool received_ = false;
  std::map<int, v1::GenerateChunk> waiting_;  // by sequence
  int64_t waiting_bytes_ = 0;
  int last_index_ = -1;  // of the chunk written last
  bool posted_ = false;  // the writer has yet to look at waiting_
  RpcOutput complete_;   // the message waits for the end
};

}  // namespace quintet
