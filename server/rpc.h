// One RPC of any method, independent of its transport: the state of reading, writing and ending,
// and the RpcHandler of the method, which interprets the messages. GrpcRpc (grpc_rpc.h) connects it
// to a gRPC stream, LocalRpc (local_rpc.h) to a caller in the same process, such as the HTTP API.
//
// Each RPC has at most one read and one write outstanding. It ends exactly once, and starts no
// operation after that. A message that arrives after the end is dropped. Three time limits apply to
// the client: to send its first message, to send the next message while nothing is in progress, and
// to read a written message.
//
// Lifetime: shared. An Rpc holds a reference to itself from Start until OnEnded. Objects that may
// call Wake later hold their own reference. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/strings/string_view.h"
#include "engine/request.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/client_timeouts.h"
#include "server/errors.h"
#include "server/rpc_registry.h"
#include "server/trace_context.h"

namespace quintet {

struct ModelBinding;

// The next output of an RPC: a message, the final status, or a message followed by the final
// status.
struct RpcOutput {
  std::optional<grpc::ByteBuffer> message;
  std::optional<RpcOutcome> end;
};

// Where an RPC comes from, for traces.
struct RpcOrigin {
  TraceContext parent;     // not valid(): none
  absl::string_view path;  // of the gRPC method, "/SERVICE/METHOD"; empty: the HTTP API
};

enum class RpcActivity : uint8_t {
  kAwaitingClient,  // nothing is in progress until the client sends a message
  kWorking,         // a request is in progress, or a response is being written
  kWatching,        // the RPC waits for an event in the server, for example a health watch
};

// The implementation of a method for one RPC. The Rpc calls these functions without holding its
// lock, unless noted, and drops its reference to the handler in OnEnded.
class RpcHandler {
 public:
  virtual ~RpcHandler() = default;

  // Called for each message of the client, one at a time, and not after the RPC has ended. If it
  // throws std::bad_alloc, the Rpc ends; the handler must not have started a request by
  // then.
  virtual void OnMessage(grpc::ByteBuffer* message) = 0;
  // Called when the client has half-closed the stream: no more messages will arrive.
  virtual void OnInputEnd() = 0;
  // Called when the client has disconnected or the RPC is cancelled. The handler should cancel its
  // requests in progress.
  virtual void OnCancel() = 0;
  // Called when the engine is stuck and the process is about to exit. The handler must end its
  // requests at once, without waiting for the engine.
  virtual void Abandon() {}

  // The three functions below are called with the lock of the Rpc held. They must not call the Rpc.
  virtual RpcActivity activity() const = 0;
  // Returns true if another message may be read now.
  virtual bool wants_message() const = 0;
  // Removes and returns the next output, which is empty if there is none yet.
  virtual RpcOutput Next() = 0;
};

class Rpc : public std::enable_shared_from_this<Rpc> {
 public:
  // `open`, the registry of open RPCs, must outlive the RPC. `max_priority` is the highest priority
  // that requests of this RPC may have.
  Rpc(RpcRegistry* open, RpcRegistry::Registration registration, const ClientTimeouts& timeouts,
      Priority max_priority);
  virtual ~Rpc() = default;

  // Starts reading. Must be called once.
  void Start(std::shared_ptr<RpcHandler> handler);
  // The handler calls this function when it has output or wants to read a message. May be called
  // from any thread; does nothing after the RPC has ended.
  void Wake();
  // Ends the RPC with `outcome` as soon as none of its requests is in progress. Output that the
  // handler still has is dropped.
  void Refuse(RpcOutcome outcome);
  // Cancels the RPC. The transport calls OnCancelled afterwards, from another thread.
  virtual void TryCancel() = 0;
  // Returns the microseconds until the client's deadline; unset if it has set no deadline.
  virtual std::optional<int64_t> remaining_us() const = 0;
  // Whether the client has sent the metadata `key` with this value.
  virtual bool has_metadata(absl::string_view key, absl::string_view value) const = 0;
  // Throws std::bad_alloc.
  virtual RpcOrigin origin() const = 0;
  // The model version for all messages of this RPC; null: each message takes the serving version.
  virtual const ModelBinding& binding() const;

  Priority max_priority() const { return max_priority_; }
  std::shared_ptr<ConnectionBytes> connection_bytes() const {
    return registration_.connection_bytes();
  }

  // The transport calls the functions from here to OnEnded, without holding a lock of its own.
  // OnRead: a read has ended, with a message if `ok`, otherwise at the end of the input.
  void OnRead(bool ok);
  // A write has ended; `ok` is false if the client has disconnected.
  void OnWritten(bool ok);
  // The client has disconnected, or the RPC was cancelled. Does nothing after OnEnded.
  void OnCancelled();
  // The transport calls this last: the RPC has ended, and no read or write is outstanding.
  void OnEnded();

  // The three functions below are for RpcRegistry.
  //
  // Ends the RPC if its client has exceeded a time limit. If `draining`, also ends an RPC that has
  // no request in progress.
  void Check(int64_t now_us, bool draining);
  // Returns true if a request is in progress or the client has not read all output.
  bool working() const;
  // Ends the requests of the RPC without waiting for the engine.
  void Abandon();

 protected:
  // The operations of the transport. They are called with mutex_ held and must not call the RPC.
  // The buffers stay valid until the operation has ended.
  virtual void StartRead(grpc::ByteBuffer* message) = 0;
  virtual void StartWrite(grpc::ByteBuffer* message) = 0;
  // Sends `last_message`, unless it is null, and ends the RPC. OnEnded is called afterwards.
  virtual void StartEnd(grpc::ByteBuffer* last_message, const RpcOutcome& outcome) = 0;

 private:
  // The four functions below must be called with mutex_ held.
  //
  // Calls StartWrite or StartEnd, and StartRead, as far as these are possible now.
  void Advance();
  // If possible, calls StartWrite for the next message, or StartEnd. Throws std::bad_alloc.
  void Write();
  // Calls Write. Returns false if an allocation failed.
  bool TryWrite();
  void Finish(const RpcOutcome& outcome);

  RpcRegistry* const open_;
  RpcRegistry::Registration registration_;
  const ClientTimeouts timeouts_;
  const Priority max_priority_;
  std::shared_ptr<RpcHandler> handler_;  // set from Start until OnEnded
  std::shared_ptr<Rpc> self_;            // set from Start until OnEnded

  mutable std::mutex mutex_;
  grpc::ByteBuffer read_, written_;
  bool reading_ = false, writing_ = false, input_ended_ = false;
  bool handling_ = false;     // OnMessage or OnInputEnd is running; the RPC must not end meanwhile
  bool client_gone_ = false;  // the RPC was cancelled or a write failed: nothing can be written
  bool finished_ = false;     // StartEnd has been called
  bool seen_message_ = false;
  std::optional<RpcOutcome> refused_;  // set by Refuse and Check: replaces the handler's status
  int64_t active_us_;     // time of the last read, write or Wake; start of the client's time limit
  int64_t write_us_ = 0;  // time at which the last write or the end was started
};

}  // namespace quintet
