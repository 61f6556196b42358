// The gRPC reactor of one RPC: connects an Rpc to a stream of gRPC's callback API.
#pragma once

#include <memory>
#include <optional>

#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "server/rpc.h"

namespace quintet {

class LoadMeter;

// The trace context in the metadata of an RPC. Throws std::bad_alloc.
TraceContext TraceContextOf(const grpc::ServerContextBase& rpc);

class GrpcRpc : public grpc::ServerGenericBidiReactor, public Rpc {
 public:
  struct Options {
    RpcRegistry* open = nullptr;  // see Rpc
    ClientTimeouts timeouts;
    Priority max_priority = Priority::kHigh;
    absl::string_view path;  // of the method: "/SERVICE/METHOD"; must outlive the RPC
    // Clients that ask for a load report get it in the trailing metadata. Null: they get none.
    const LoadMeter* load = nullptr;
  };
  // `context` is owned by gRPC and valid until OnDone.
  GrpcRpc(grpc::CallbackServerContext* context, const Options& options,
          RpcRegistry::Registration registration)
      : Rpc(options.open, std::move(registration), options.timeouts, options.max_priority),
        context_(context),
        path_(options.path),
        load_(options.load) {}

  void TryCancel() override { context_->TryCancel(); }
  std::optional<int64_t> remaining_us() const override;
  bool has_metadata(absl::string_view key, absl::string_view value) const override;
  RpcOrigin origin() const override;

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

  void AddLoadReport();

  grpc::CallbackServerContext* const context_;
  const absl::string_view path_;
  const LoadMeter* const load_;
};

}  // namespace quintet
