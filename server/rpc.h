// One RPC on the wire, of any method: a gRPC reactor that reads and writes messages as bytes. An
// RpcHandler gives them their meaning.
//
// The reactor keeps the rules of gRPC's callback API for all methods: at most one read and one
// write are outstanding, exactly one Finish is called, and after it nothing is started; a message
// that arrives later is dropped. It also bounds what a client can hold: the wait for its first
// message, for the next one while nothing is in progress, and for it to take what was written.
//
// Lifetime: shared. gRPC holds a reference from Start until OnDone, and so does whoever may call
// Wake later. Thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/request.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "server/client_patience.h"
#include "server/errors.h"
#include "server/open_rpcs.h"

namespace quintet {

// The next step of an RPC: a message to write, the end, or a message and then the end.
struct RpcOutput {
  std::optional<grpc::ByteBuffer> message;
  std::optional<RpcOutcome> end;
};

enum class RpcActivity : uint8_t {
  kAwaitsClient,  // nothing is in progress until the client sends a message
  kWorking,       // requests are in progress, or output is
  kWatching,      // open for later news, such as a health watch
};

// The behaviour of a method for one RPC. The reactor calls it without a lock of its own unless
// noted, and drops its reference when gRPC is done with the RPC.
class RpcHandler {
 public:
  virtual ~RpcHandler() = default;

  // A message of the client; one at a time, none after the end. When it throws std::bad_alloc the
  // reactor ends the RPC, so it must not have begun anything by then.
  virtual void OnMessage(grpc::ByteBuffer* message) = 0;
  // The client sends no more messages.
  virtual void OnInputEnd() = 0;
  // The client is gone, or the RPC is being cut off: requests in progress should end soon.
  virtual void OnCancel() = 0;
  // The engine is stuck and the process will end: requests in progress end at once, without it.
  virtual void Abandon() {}

  // Called with the reactor's lock held; must not call the reactor.
  virtual RpcActivity activity() const = 0;
  // Whether another message may be read now.
  virtual bool wants_message() const = 0;
  // Takes the next output; empty when there is none yet.
  virtual RpcOutput Next() = 0;
};

class Rpc : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<Rpc> {
 public:
  // `context` is gRPC's and lives until OnDone; `open` outlives the reactor. `max_priority`: the
  // highest that requests of this RPC may have.
  Rpc(grpc::CallbackServerContext* context, OpenRpcs* open, OpenRpcs::Place place,
      const ClientPatience& patience, Priority max_priority);
  ~Rpc() override = default;

  // Begins to read. Once.
  void Start(std::shared_ptr<RpcHandler> handler);
  // The handler has output, or wants to read. Any thread; without effect after the end.
  void Wake();
  // Ends the RPC with `outcome` once none of its requests is in progress. Output that the handler
  // still has is dropped.
  void Refuse(RpcOutcome outcome);
  // Cuts the RPC off: OnCancel follows.
  virtual void TryCancel() { context_->TryCancel(); }

  grpc::CallbackServerContext* context() { return context_; }
  Priority max_priority() const { return max_priority_; }
  std::shared_ptr<ConnectionBytes> connection_bytes() const { return place_.connection_bytes(); }

  // gRPC's reactions.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // For OpenRpcs. Ends or cuts off an RPC whose client is too slow, and, when the server drains,
  // one that waits for its client.
  void Check(int64_t now_us, bool draining);
  // Requests are in progress or output has not been taken.
  bool working() const;
  void Abandon();

 private:
  // All with mutex_ held. Starts what can be started.
  void Advance();
  // Starts the next write or the end. May throw std::bad_alloc.
  void Write();
  // False when an allocation failed.
  bool TryWrite();
  void Finish(const RpcOutcome& outcome);

  grpc::CallbackServerContext* const context_;
  OpenRpcs* const open_;
  OpenRpcs::Place place_;
  const ClientPatience patience_;
  const Priority max_priority_;
  std::shared_ptr<RpcHandler> handler_;  // until OnDone
  std::shared_ptr<Rpc> self_;            // from Start until OnDone

  mutable std::mutex mutex_;
  grpc::ByteBuffer read_, written_;
  bool reading_ = false, writing_ = false, input_ended_ = false;
  bool handling_ = false;  // OnMessage or OnInputEnd runs: no end meanwhile
  bool gone_ = false;      // nothing more can be written
  bool finished_ = false;  // Finish has been called
  bool seen_message_ = false;
  std::optional<RpcOutcome> refused_;
  int64_t active_us_;  // when the client last did its part, or work last ended
  int64_t write_us_ = 0;
};

}  // namespace quintet
