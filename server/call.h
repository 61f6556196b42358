// One request of an RPC that needs the engine: checked, admitted, tokenized on the executor, run by
// the engine, answered exactly once. Subclasses define the engine's requests (none: the engine is
// left out) and the answer.
//
// Threads: Start and Cancel on gRPC's, Prepare and Respond on the executors', results on the
// engine's. From Start until its end a call keeps itself alive.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/request.h"
#include "grpcpp/grpcpp.h"
#include "quintet/v1/inference.pb.h"
#include "server/admission.h"
#include "server/api_keys.h"
#include "server/errors.h"
#include "server/executor.h"
#include "server/memory_budget.h"
#include "server/model_host.h"
#include "server/open_rpcs.h"
#include "server/rpc.h"
#include "server/wire.h"

namespace quintet {

// What all calls share; owned by the server.
struct CallContext {
  std::vector<ModelHost*> hosts;
  Executor* preparation = nullptr;  // tokenizes
  Executor* completion = nullptr;   // makes answers of results
  Executor* writer = nullptr;       // one thread: hands chunks of streams to gRPC
  MemoryBudget* memory = nullptr;
  int64_t max_text_bytes = 1 << 20, max_message_bytes = 4 << 20;
  int64_t default_timeout_us = 60'000'000, max_timeout_us = 600'000'000;
  std::atomic<uint64_t> next_id{1};
  OpenRpcs rpcs;
  const ApiKeys* api_keys = nullptr;  // null: every client may call

  // Of calls refused before their model is known: no key, no such model.
  RefusalMetrics* refusals = nullptr;

  // The host of a name; empty: the only one. NOT_FOUND, INVALID_ARGUMENT (several loaded).
  absl::StatusOr<ModelHost*> Find(const std::string& model) const;
  // The highest priority that the RPC's key allows. UNAUTHENTICATED without a key,
  // PERMISSION_DENIED with a wrong one.
  absl::StatusOr<Priority> Authorize(const grpc::ServerContextBase& rpc) const;
};

// The size of a call, for its place in the queue.
struct CallSize {
  int64_t requests = 1;
  InputSize inputs;
};

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(CallContext* context, std::shared_ptr<Rpc> rpc, const char* name);
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // First; once. `size`: of the requests that will follow.
  void Start(const v1::CallOptions& options, const CallSize& size);
  // The client is gone: ends the requests in progress. Any time, any thread.
  void Cancel();
  // The engine is stuck: ends the call without it, INTERNAL when it had begun, for the request may
  // be the cause, else UNAVAILABLE.
  void Abandon();

 protected:
  // The engine's requests; deadline, priority and sink are left to Call.
  virtual absl::StatusOr<std::vector<Request>> Prepare() = 0;
  // The most bytes that the answer can take, as far as the request tells before it is tokenized.
  // Reserved at admission, so that no call works for an answer that it cannot hold.
  virtual int64_t AnswerBound() { return 0; }
  // All results, in the order of the requests; writes the answer.
  virtual absl::Status Respond(std::vector<Result> results) = 0;
  // The end of the call. Once, and last: nothing of it runs afterwards.
  virtual void Ended(RpcOutcome outcome) = 0;
  virtual void OnTokens(int index, absl::Span<const int32_t> ids, const std::string& text) {
    (void)index, (void)ids, (void)text;
  }

  const CallContext& context() const { return *context_; }
  const std::shared_ptr<Rpc>& rpc() const { return rpc_; }
  // Ends the call, once.
  void End(const absl::Status& status);
  // The same when an allocation has failed; allocates nothing.
  void EndOutOfMemory();
  // Parses the request's message into `proto`. False: the call has ended with the reason.
  bool Parse(grpc::ByteBuffer* message, google::protobuf::MessageLite* proto);
  // Reserves `bytes` beyond what the parsed request takes.
  absl::Status ReserveMemory(int64_t bytes) { return memory_.Resize(message_bytes_ + bytes); }
  // The bytes of an answer, for gRPC. From now on only they count as the call's memory: its request
  // and results must have been freed. Throws std::bad_alloc.
  grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& answer);
  ModelHost& host() { return *host_; }
  const v1::CallOptions& options() const { return options_; }
  InputLimits input_limits() const;
  void FillInfo(const std::vector<Result>& results, v1::CallInfo* info) const;

 private:
  class Sink;

  // All checks that do not look at the inputs.
  absl::Status Enter(const CallSize& size);
  void PrepareAndSubmit();
  void Submit(std::vector<Request> requests);
  absl::StatusOr<RequestId> SubmitOne(Request request);
  void OnResult(size_t index, absl::StatusOr<Result> result);
  void Complete();
  void EndWith(RpcOutcome outcome, const std::string& reason);

  CallContext* const context_;
  const std::shared_ptr<Rpc> rpc_;
  const char* const name_;
  v1::CallOptions options_;
  std::string request_id_;
  ModelHost* host_ = nullptr;
  Priority priority_ = Priority::kNormal;
  int64_t arrival_us_ = 0, deadline_us_ = 0, tokenized_us_ = 0;

  MemoryReservation memory_;
  int64_t message_bytes_ = 0;   // reserved for the request
  std::shared_ptr<Call> self_;  // from Start until the end

  std::mutex mutex_;
  Admission::Place place_;  // until the engine has started the last request
  size_t not_started_ = 0;
  size_t pending_ = 0;  // results to come, plus one while submitting
  bool cancelled_ = false, ended_ = false, abandoned_ = false;
  absl::Status failure_;  // the first
  std::vector<RequestId> ids_;
  std::vector<int64_t> max_new_tokens_;
  std::vector<Result> results_;
  std::vector<bool> started_;
};

}  // namespace quintet
