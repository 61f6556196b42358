// Handler of the EncodeStream RPC. Each message is a separate Call, and responses are written in
// completion order. The first Call that fails ends the stream with its error; responses that have
// not been written by then are dropped.
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
  // Maximum number of items (input messages of one stream) that are being processed or whose
  // response waits to be written. At this number the server stops reading the stream, so that
  // HTTP/2 flow control slows the client down.
  static constexpr size_t kMaxItems = 64;

  void ItemEnded(std::shared_ptr<Item> item, RpcOutcome outcome);
  std::vector<std::shared_ptr<Item>> Items() const;

  CallContext* const context_;
  const std::shared_ptr<Rpc> rpc_;
  mutable std::mutex mutex_;
  std::set<std::shared_ptr<Item>> items_;         // items in progress
  std::vector<std::shared_ptr<Item>> completed_;  // waiting to be written, in completion order
  std::shared_ptr<Item> written_;  // keeps its memory reserved until the next item is written
  bool input_ended_ = false;
  std::optional<RpcOutcome> failure_;  // outcome of the first item that failed
};

}  // namespace quintet
