// EncodeStream: each message is a call of its own, and answers leave in the order of completion. An
// item that fails ends the stream with its error; answers that have not left by then are dropped.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "server/call.h"

namespace quintet {

class EncodeStream final : public RpcHandler, public std::enable_shared_from_this<EncodeStream> {
 public:
  EncodeStream(CallContext* context, std::shared_ptr<Rpc> rpc);

  void OnMessage(grpc::ByteBuffer* message) override;
  void OnInputEnd() override;
  void OnCancel() override;
  void Abandon() override;
  RpcActivity activity() const override;
  bool wants_message() const override;
  RpcOutput Next() override;

 private:
  class Item;
  // Items in progress or answered and not yet written. At this number nothing is read, which
  // HTTP/2's flow control passes on to the client.
  static constexpr size_t kMaxItems = 64;

  void ItemEnded(std::shared_ptr<Item> item, RpcOutcome outcome);
  std::vector<std::shared_ptr<Item>> Items() const;

  CallContext* const context_;
  const std::shared_ptr<Rpc> rpc_;
  mutable std::mutex mutex_;
  std::set<std::shared_ptr<Item>> items_;        // in progress
  std::vector<std::shared_ptr<Item>> answered_;  // in the order of completion
  std::shared_ptr<Item> written_;                // holds its memory until the next one is written
  bool input_ended_ = false;
  std::optional<RpcOutcome> failure_;  // the first
};

}  // namespace quintet
