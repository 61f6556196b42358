// Dispatches all RPCs of the server by path. Before an RPC reaches its method, the service checks
// the API key and then the limits on open RPCs. An unknown path is rejected only after the API key
// was checked, so that clients without a key learn nothing about the server.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "grpcpp/generic/async_generic_service.h"
#include "server/call.h"
#include "server/grpc_rpc.h"
#include "server/methods.h"

namespace quintet {

class RpcService final : public grpc::CallbackGenericService {
 public:
  // `context` must outlive the gRPC server that this service is registered with.
  RpcService(CallContext* context, const ClientTimeouts& timeouts)
      : context_(context), timeouts_(timeouts) {}

  // Adds methods. Must not be called after the gRPC server has started.
  void Add(std::vector<Method> methods);

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* rpc) override;

 private:
  absl::StatusOr<std::shared_ptr<GrpcRpc>> Open(grpc::GenericCallbackServerContext* rpc);
  // Records an RPC that has arrived at `arrival_us` and that Open has rejected: in the access log,
  // and, unless its path is unknown, as a span.
  void RecordRefused(const grpc::GenericCallbackServerContext& rpc, const absl::Status& status,
                     int64_t arrival_us) const;

  CallContext* const context_;
  const ClientTimeouts timeouts_;
  absl::flat_hash_map<std::string, Method> methods_;
};

}  // namespace quintet
