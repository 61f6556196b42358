// The course that every RPC takes: checked, admitted, tokenized on the executor, run by the engine,
// answered exactly once. Subclasses say what the requests are (none: the engine is left out) and
// how the answer is written.
//
// Threads: Start and Cancelled on gRPC's, Prepare and Respond on the executor's, results on the
// engine's. The object lives until Close, which its gRPC reactor's OnDone calls; that comes only
// after FinishRpc.
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
#include "server/model_host.h"
#include "server/open_calls.h"
#include "server/wire.h"

namespace quintet {

// What all calls share; owned by the server.
struct CallContext {
  std::vector<ModelHost*> hosts;
  Executor* executor = nullptr;
  Executor* writer =
      nullptr;  // one thread, of chunks: no engine waits for gRPC, nor a chunk for a tokenizer
  int64_t max_text_bytes = 1 << 20, max_message_bytes = 4 << 20;
  int64_t default_timeout_us = 60'000'000, max_timeout_us = 600'000'000;
  std::atomic<uint64_t> next_id{1};
  OpenCalls calls;
  const ApiKeys* api_keys = nullptr;  // null: every client may call

  // Calls refused before their model is known: no key, no such model.
  RefusalMetrics* refusals = nullptr;

  // The host of a name; empty: the only one. NOT_FOUND, INVALID_ARGUMENT (several loaded).
  absl::StatusOr<ModelHost*> Find(const std::string& model) const;
  // UNAUTHENTICATED without a key, PERMISSION_DENIED with a wrong one.
  absl::Status Authorize(const grpc::ServerContextBase& rpc) const;
};

// What a call brings, for its place in the queue.
struct CallSize {
  int64_t requests = 1;
  int64_t input_bytes = 0;  // of text; 3 for each id
};

class Call {
 public:
  Call(CallContext* context, grpc::CallbackServerContext* rpc, const char* name);
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // First. `size`: of the requests that will follow.
  void Start(const v1::CallOptions& options, const CallSize& size);
  // Last: deletes the object.
  void Close() { context_->calls.Close(this); }
  // The client is gone: ends what runs. Any time, any thread.
  void Cancelled();
  // Cancels a stream whose reader takes nothing.
  virtual void CancelIfStuck(int64_t now_us) { (void)now_us; }
  // The engine is stuck: answers without it, with INTERNAL when it had begun, for the request may
  // be the cause, else with UNAVAILABLE.
  void Abandon();

 protected:
  // The engine's requests; deadline, priority and sink are left to Call.
  virtual absl::StatusOr<std::vector<Request>> Prepare() = 0;
  // All results, in the order of the requests; writes the answer.
  virtual absl::Status Respond(std::vector<Result> results) = 0;
  // Ends the RPC. Once.
  virtual void FinishRpc(const RpcOutcome& outcome) = 0;
  virtual void OnTokens(int index, absl::Span<const int32_t> ids, const std::string& text) {
    (void)index, (void)ids, (void)text;
  }

  const CallContext& context() const { return *context_; }
  ModelHost& host() { return *host_; }
  const v1::CallOptions& options() const { return options_; }
  InputLimits input_limits() const;
  void FillInfo(const std::vector<Result>& results, v1::CallInfo* info) const;

 private:
  class Sink;

  // Everything that can be said without looking at the inputs.
  absl::Status Enter(const CallSize& size);
  void PrepareAndSubmit();
  void Submit(std::vector<Request> requests);
  void OnResult(size_t index, absl::StatusOr<Result> result);
  void Complete();
  void End(const absl::Status& status);

  CallContext* const context_;
  grpc::CallbackServerContext* const rpc_;
  const char* const name_;
  v1::CallOptions options_;
  std::string request_id_;
  ModelHost* host_ = nullptr;
  int64_t arrival_us_ = 0, deadline_us_ = 0, tokenized_us_ = 0;

  std::mutex mutex_;
  Admission::Place place_;  // until the engine has started the last request
  size_t not_started_ = 0;
  size_t pending_ = 0;  // results to come, plus one while submitting
  bool cancelled_ = false, ended_ = false;
  absl::Status failure_;  // the first
  std::vector<RequestId> ids_;
  std::vector<int64_t> max_new_tokens_;
  std::vector<Result> results_;
  std::vector<bool> started_;
};

}  // namespace quintet
