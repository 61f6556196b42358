// Load generator targets: a running server, reached by asynchronous gRPC calls. Several threads
// read the responses, so that the generator is not slower than the server. Contains the parts that
// all gRPC protocols share, and the target of quintet.v1.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/clock.h"
#include "grpcpp/grpcpp.h"
#include "tools/load/event_queue.h"
#include "tools/load/server_target.h"

namespace quintet {

// One gRPC call. Its address is the tag of its operations in the completion queue. At most one
// operation of a call is in flight at a time.
class GrpcCall {
 public:
  explicit GrpcCall(uint64_t id) : id_(id) {}
  virtual ~GrpcCall() = default;
  // Handles the completion of the operation in flight and starts the next one. Returns false if the
  // call has ended and can be deleted. Called in a thread of the target.
  virtual bool Proceed(bool ok, LoadObserver* observer) = 0;

  grpc::ClientContext context;

 protected:
  const uint64_t id_;
  grpc::Status status_;
};

// A call with one response. `kEndOf` converts its status and response to a RequestEnd.
template <typename Response, RequestEnd (*kEndOf)(const grpc::Status&, const Response&)>
class UnaryGrpcCall final : public GrpcCall {
 public:
  using GrpcCall::GrpcCall;
  // `prepare`: &Stub::PrepareAsyncX for the method X.
  template <typename Stub, typename Prepare, typename Request>
  void Start(Stub* stub, Prepare prepare, const Request& request, grpc::CompletionQueue* queue) {
    reader_ = (stub->*prepare)(&context, request, queue);
    reader_->StartCall();
    reader_->Finish(&response_, &status_, static_cast<GrpcCall*>(this));
  }
  bool Proceed(bool, LoadObserver* observer) override {
    observer->OnEnd(id_, kEndOf(status_, response_), MonotonicMicros());
    return false;
  }

 private:
  Response response_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader_;
};

class GrpcTarget : public ServerTarget {
 public:
  ~GrpcTarget() override;
  void Poll(int64_t timeout_us, LoadObserver* observer) override;

 protected:
  // Opens options.channels connections.
  explicit GrpcTarget(const ServerTargetOptions& options);
  // Waits until all connections are open and fills info() by GetModelInfo of quintet.v1.
  absl::Status ReadInfo();

  // Creates a call and passes `arguments` and a completion queue to its Start. A thread takes the
  // call's events from the queue and deletes the call when it has ended.
  template <typename Call, typename... Arguments>
  void Start(uint64_t id, Arguments&&... arguments) {
    auto* call = new Call(id);
    SetDeadline(&call->context);
    call->Start(std::forward<Arguments>(arguments)..., &readers_[id % readers_.size()]->queue);
  }
  void SetDeadline(grpc::ClientContext* context) const;

  const ServerTargetOptions options_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;

 private:
  struct Reader {
    grpc::CompletionQueue queue;
    std::thread thread;
  };
  void Read(grpc::CompletionQueue* queue);

  std::vector<std::unique_ptr<Reader>> readers_;
  EventQueue events_;
  std::atomic<bool> ending_{false};
};

// Converts the status of a call, with its google.rpc details, to a request's outcome (RequestEnd).
RequestEnd GrpcEnd(const grpc::Status& status, int64_t input_tokens, int64_t output_tokens);
// Returns "address: message" with the code of `status`.
absl::Status StatusOfServer(const std::string& address, const grpc::Status& status);

// Connects by quintet.v1.
absl::StatusOr<std::unique_ptr<ServerTarget>> ConnectGrpc(const ServerTargetOptions& options);

}  // namespace quintet
