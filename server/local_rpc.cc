#include "server/local_rpc.h"

#include <utility>

namespace quintet {

LocalRpc::LocalRpc(const Options& options, RpcRegistry::Registration registration,
                   LocalClient* client, size_t index)
    : Rpc(options.open, std::move(registration), options.timeouts, options.max_priority),
      timeout_us_(options.timeout_us),
      binding_(options.binding),
      parent_(options.parent),
      client_(client),
      index_(index) {}

void LocalRpc::Run(std::shared_ptr<RpcHandler> handler, grpc::ByteBuffer message) {
  Start(std::move(handler));
  // Every handler reads a message as soon as it starts, unless the RPC has been cancelled before.
  if (read_into_ == nullptr) return;
  *read_into_ = std::move(message);
  OnRead(/*ok=*/true);
}

void LocalRpc::StartRead(grpc::ByteBuffer* message) { read_into_ = message; }

void LocalRpc::StartWrite(grpc::ByteBuffer* message) { client_->OnMessage(index_, *message); }

void LocalRpc::StartEnd(grpc::ByteBuffer* last_message, const RpcOutcome& outcome) {
  client_->OnEnd(index_, last_message, outcome);
}

}  // namespace quintet
