// Base class of the handlers of methods whose client sends one message and gets at most one
// response, which is sent together with the status of the RPC.
//
// Thread-safe: the response and the outcome may be set by any thread. The derived class must call
// Rpc::Wake after SetOutcome unless it runs in OnMessage or OnInputEnd.
#pragma once

#include <mutex>
#include <utility>

#include "server/rpc.h"

namespace quintet {

class SingleMessageHandler : public RpcHandler {
 public:
  RpcActivity activity() const final {
    std::lock_guard<std::mutex> lock(mutex_);
    return received_ ? RpcActivity::kWorking : RpcActivity::kAwaitingClient;
  }
  bool wants_message() const final { return activity() == RpcActivity::kAwaitingClient; }
  RpcOutput Next() final {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!output_.end.has_value()) return {};
    return std::exchange(output_, {});
  }

 protected:
  // Records that the message has arrived. From then on the RPC ends only after SetOutcome, so if
  // OnMessage throws afterwards, OnCancel must call SetOutcome.
  void SetReceived() {
    std::lock_guard<std::mutex> lock(mutex_);
    received_ = true;
  }
  void SetResponse(grpc::ByteBuffer response) {
    std::lock_guard<std::mutex> lock(mutex_);
    output_.message = std::move(response);
  }
  // Sets the outcome of the RPC. An outcome other than OK drops the response.
  void SetOutcome(RpcOutcome outcome) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!outcome.status.ok()) output_.message.reset();
    output_.end = std::move(outcome);
  }

 private:
  mutable std::mutex mutex_;
  bool received_ = false;
  RpcOutput output_;
};

}  // namespace quintet
