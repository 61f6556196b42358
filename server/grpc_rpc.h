// The gRPC reactor of one RPC: connects an Rpc to a stream of gRPC's callback API.
#pragma once

#include <memory>
#include <optional>

#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc.h"

namespace quintet {

class GrpcRpc : public grpc::ServerGenericBidiReactor, public Rpc {
 public:
  // `context` is owned by gRPC and valid until OnDone. For the other arguments see Rpc.
  GrpcRpc(grpc::CallbackServerContext* context, RpcRegistry* open,
          RpcRegistry::Registration registration, const ClientTimeouts& timeouts,
          Priority max_priority)
      : Rpc(open, std::move(registration), timeouts, max_priority), context_(context) {}

  void TryCancel() override { context_->TryCancel(); }
  std::optional<int64_t> remaining_us() const override;
  bool has_metadata(absl::string_view key, absl::string_view value) const override;

  // Called by gRPC when an operation has finished, the RPC is cancelled or the RPC is done.
  void OnReadDone(bool ok) override { OnRead(ok); }
  void OnWriteDone(bool ok) override { OnWritten(ok); }
  void OnCancel() override { OnCancelled(); }
  void OnDone() override { OnEnded(); }

 private:
  using Reactor = grpc::ServerGenericBidiReactor;
  void StartRead(grpc::ByteBuffer* message) override { Reactor::StartRead(message); }
  void StartWrite(grpc::ByteBuffer* message) override { Reactor::StartWrite(message); }
  void StartEnd(grpc::ByteBuffer* last_message, const RpcOutcome& outcome) override;

  grpc::CallbackServerContext* const context_;
};

}  // namespace quintet
