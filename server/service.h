// All RPCs of the server, by path. Every one goes through the same steps before its method sees
// it: the API key, then the limits of open RPCs. A path that is no method of ours is refused after
// the key, so that nothing can be learned without one.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "grpcpp/generic/async_generic_service.h"
#include "server/call.h"
#include "server/methods.h"

namespace quintet {

class RpcService final : public grpc::CallbackGenericService {
 public:
  // `context` outlives the gRPC server that runs this.
  RpcService(CallContext* context, const ClientPatience& patience)
      : context_(context), patience_(patience) {}

  // Before the server starts.
  void Add(std::vector<Method> methods);

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* rpc) override;

 private:
  absl::StatusOr<std::shared_ptr<Rpc>> Open(grpc::GenericCallbackServerContext* rpc);

  CallContext* const context_;
  const ClientPatience patience_;
  absl::flat_hash_map<std::string, Method> methods_;
};

}  // namespace quintet
