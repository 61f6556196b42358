// Handler of the ModelStreamInfer RPC. Each message is a separate Call with one or, if its response
// is streamed, several responses, which carry the id of the request. Responses of different
// requests interleave; those of one request are in order, and the last one has the parameter
// triton_final_response. A request that fails ends with an error_message, and the stream continues;
// but if the client sent the metadata triton_grpc_error: true, the first failed request ends the
// stream with its status.
//
// Chunks that arrive during a write are merged. A client that lets more than 1 MiB of unwritten
// chunks accumulate is disconnected.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "server/call.h"

namespace quintet {

class InferStream final : public RpcHandler, public std::enable_shared_from_this<InferStream> {
 public:
  InferStream(CallContext* context, std::shared_ptr<Rpc> rpc);

  void OnMessage(grpc::ByteBuffer* message) override;
  void OnInputEnd() override;
  void OnCancel() override;
  void Abandon() override;
  RpcActivity activity() const override;
  bool wants_message() const override;
  RpcOutput Next() override;

 private:
  class Item;
  // Maximum number of requests of one stream that are in progress or whose last response waits to
  // be written. At this number the server stops reading the stream, so that HTTP/2 flow control
  // slows the client down.
  static constexpr size_t kMaxItems = 64;

  // Called when a request has new chunks. `bytes`: by how much the unwritten output has grown.
  void ChunksAdded(int64_t bytes);
  void ItemEnded(const std::shared_ptr<Item>& item, RpcOutcome outcome);
  std::vector<std::shared_ptr<Item>> Items() const;
  // Whether `outcome`, the status of a failed request, ends the whole stream or only the request.
  bool EndsStream(const RpcOutcome& outcome) const;

  CallContext* const context_;
  const std::shared_ptr<Rpc> rpc_;
  const bool grpc_errors_;
  mutable std::mutex mutex_;
  // Requests in progress and those whose last response waits to be written, in the order in which
  // output is taken from them.
  std::deque<std::shared_ptr<Item>> items_;
  std::shared_ptr<Item> written_;  // keeps its memory reserved until the next response is written
  int64_t unwritten_bytes_ = 0;    // of chunks
  bool write_posted_ = false;      // a writer task is queued that will look at items_
  bool input_ended_ = false;
  std::optional<RpcOutcome> failure_;  // of the first item that ended the stream
};

}  // namespace quintet
