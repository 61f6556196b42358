// One RPC of any method: a gRPC reactor that reads and writes messages as bytes. The RpcHandler of
// the method interprets the messages.
//
// The reactor follows the rules of the gRPC callback API for all methods: at most one read and one
// write are outstanding, Finish is called exactly once, and no operation is started after Finish. A
// message that arrives after Finish is dropped. The reactor also enforces three time limits on the
// client: to send its first message, to send the next message while nothing is in progress, and to
// read a written message.
//
// Lifetime: shared. The reactor holds a reference to itself from Start until OnDone. Objects that
// may call Wake later hold their own reference. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "engine/request.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "server/client_timeouts.h"
#include "server/errors.h"
#include "server/rpc_registry.h"

namespace quintet {

// The next output of an RPC: a message, the final status, or a message followed by the final
// status.
struct RpcOutput {
  std::optional<grpc::ByteBuffer> message;
  std::optional<RpcOutcome> end;
};

enum class RpcActivity : uint8_t {
  kAwaitingClient,  // nothing is in progress until the client sends a message
  kWorking,         // a request is in progress, or a response is being written
  kWatching,        // the RPC waits for an event in the server, for example a health watch
};

// The implementation of a method for one RPC. The reactor calls these functions without holding its
// lock, unless noted, and drops its reference to the handler in OnDone.
class RpcHandler {
 public:
  virtual ~RpcHandler() = default;

  // Called for each message of the client, one at a time, and not after the RPC has ended. If it
  // throws std::bad_alloc, the reactor ends the RPC; the handler must not have started a request by
  // then.
  virtual void OnMessage(grpc::ByteBuffer* message) = 0;
  // Called when the client has half-closed the stream: no more messages will arrive.
  virtual void OnInputEnd() = 0;
  // Called when the client has gone or the RPC is cancelled. The handler should cancel its requests
  // in progress.
  virtual void OnCancel() = 0;
  // Called when the engine is stuck and the process is about to exit. The handler must end its
  // requests at once, without waiting for the engine.
  virtual void Abandon() {}

  // The three functions below are called with the lock of the reactor held. They must not call the
  // reactor.
  virtual RpcActivity activity() const = 0;
  // Returns true if another message may be read now.
  virtual bool wants_message() const = 0;
  // Removes and returns the next output. Empty if there is none yet.
  virtual RpcOutput Next() = 0;
};

class Rpc : public grpc::ServerGenericBidiReactor, public std::enable_shared_from_this<Rpc> {
 public:
  // `context` is owned by gRPC and valid until OnDone. `open`, the registry of open RPCs, must
  // outlive the reactor. `max_priority` is the highest priority that requests of this RPC may have.
  Rpc(grpc::CallbackServerContext* context, RpcRegistry* open,
      RpcRegistry::Registration registration, const ClientTimeouts& timeouts,
      Priority max_priority);
  ~Rpc() override = default;

  // Starts reading. Must be called once.
  void Start(std::shared_ptr<RpcHandler> handler);
  // The handler calls this function when it has output or wants to read a message. May be called
  // from any thread; does nothing after the RPC has ended.
  void Wake();
  // Ends the RPC with `outcome` as soon as none of its requests is in progress. Output that the
  // handler still has is dropped.
  void Refuse(RpcOutcome outcome);
  // Cancels the RPC. gRPC calls OnCancel afterwards.
  virtual void TryCancel() { context_->TryCancel(); }

  grpc::CallbackServerContext* context() { return context_; }
  Priority max_priority() const { return max_priority_; }
  std::shared_ptr<ConnectionBytes> connection_bytes() const {
    return registration_.connection_bytes();
  }

  // Called by gRPC when an operation has finished, the RPC is cancelled or the RPC is done.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // The three functions below are for RpcRegistry.
  //
  // Ends the RPC if its client has exceeded a time limit. If `draining`, also ends an RPC that has
  // no request in progress.
  void Check(int64_t now_us, bool draining);
  // Returns true if a request is in progress or the client has not read all output.
  bool working() const;
  // Ends the requests of the RPC without waiting for the engine.
  void Abandon();

 private:
  // The four functions below must be called with mutex_ held.
  //
  // Starts every operation that can be started now: a write, Finish, a read.
  void Advance();
  // Starts the next write or calls Finish. Throws std::bad_alloc.
  void Write();
  // Calls Write. Returns false if an allocation failed.
  bool TryWrite();
  void Finish(const RpcOutcome& outcome);

  grpc::CallbackServerContext* const context_;
  RpcRegistry* const open_;
  RpcRegistry::Registration registration_;
  const ClientTimeouts timeouts_;
  const Priority max_priority_;
  std::shared_ptr<RpcHandler> handler_;  // set from Start until OnDone
  std::shared_ptr<Rpc> self_;            // set from Start until OnDone

  mutable std::mutex mutex_;
  grpc::ByteBuffer read_, written_;
  bool reading_ = false, writing_ = false, input_ended_ = false;
  bool handling_ = false;     // OnMessage or OnInputEnd is running; the RPC must not end meanwhile
  bool client_gone_ = false;  // the RPC was cancelled or a write failed: nothing can be written
  bool finished_ = false;     // Finish has been called
  bool seen_message_ = false;
  std::optional<RpcOutcome> refused_;  // set by Refuse and Check: replaces the handler's status
  int64_t active_us_;     // time of the last read, write or Wake; start of the client's time limit
  int64_t write_us_ = 0;  // time at which the last write or Finish was started
};

}  // namespace quintet
