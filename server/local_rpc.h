// An RPC whose client is in the same process: one request message, and the responses passed to a
// LocalClient. The HTTP API runs the methods of quintet.v1 through it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "server/model_directory.h"
#include "server/rpc.h"

namespace quintet {

// The caller of one or more LocalRpcs, each identified by an index. The functions are called from
// any thread, with a lock of the RPC held: they must not call the RPC, must not block and must not
// throw.
class LocalClient {
 public:
  virtual ~LocalClient() = default;
  // Receives a response other than the last. The next one comes only after LocalRpc::OnWritten.
  virtual void OnMessage(size_t index, const grpc::ByteBuffer& message) = 0;
  // The RPC has ended; `last` is its last message, null if it failed. The client must call
  // LocalRpc::OnEnded later. `outcome` is valid only until OnEnd returns.
  virtual void OnEnd(size_t index, grpc::ByteBuffer* last, const RpcOutcome& outcome) = 0;
  // The server cancels the RPC. The client must call LocalRpc::OnCancelled later, from another
  // thread. The server may call OnCutOff more than once.
  virtual void OnCutOff() = 0;
};

class LocalRpc final : public Rpc {
 public:
  struct Options {
    RpcRegistry* open = nullptr;
    ClientTimeouts timeouts;
    Priority max_priority = Priority::kHigh;
    std::optional<int64_t> timeout_us;  // time until the deadline of the client, from now
    ModelBinding binding;
    TraceContext parent;  // the span of the client's request
  };
  // `client` must outlive the RPC, whose lifetime ends with OnEnded.
  LocalRpc(const Options& options, RpcRegistry::Registration registration, LocalClient* client,
           size_t index);

  // Starts the RPC with its only message. Throws std::bad_alloc; the RPC has not started then.
  void Run(std::shared_ptr<RpcHandler> handler, grpc::ByteBuffer message);

  void TryCancel() override { client_->OnCutOff(); }
  std::optional<int64_t> remaining_us() const override { return timeout_us_; }
  bool has_metadata(absl::string_view, absl::string_view) const override { return false; }
  RpcOrigin origin() const override { return {parent_, ""}; }
  const ModelBinding& binding() const override { return binding_; }

 private:
  void StartRead(grpc::ByteBuffer* message) override;
  void StartWrite(grpc::ByteBuffer* message) override;
  void StartEnd(grpc::ByteBuffer* last_message, const RpcOutcome& outcome) override;

  const std::optional<int64_t> timeout_us_;
  const ModelBinding binding_;
  const TraceContext parent_;
  LocalClient* const client_;
  const size_t index_;
  grpc::ByteBuffer* read_into_ = nullptr;
};

}  // namespace quintet
