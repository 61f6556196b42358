// One call: one request message of an RPC. A call is validated, admitted to the queue, tokenized on
// an executor, run by the engine, and it ends exactly once. A subclass defines the engine requests
// (an empty list skips the engine) and the response.
//
// Threads: Start and Cancel run on threads of the transport, Prepare and Respond on executor
// threads, and results arrive on the engine thread. A call holds a reference to itself from Start
// until it ends.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/request.h"
#include "quintet/v1/inference.pb.h"
#include "server/access_log.h"
#include "server/admission.h"
#include "server/api_keys.h"
#include "server/errors.h"
#include "server/executor.h"
#include "server/memory_budget.h"
#include "server/model_directory.h"
#include "server/model_host.h"
#include "server/proto_conversion.h"
#include "server/request_spans.h"
#include "server/rpc.h"
#include "server/rpc_registry.h"
#include "server/sharded_executor.h"
#include "server/tracer.h"

namespace quintet {

class LoadMeter;

// State shared by all calls. Owned by the server.
struct CallContext {
  // Prepares Abseil's random numbers, which calls use.
  CallContext();

  ModelDirectory* models = nullptr;
  Executor* preparation = nullptr;    // tokenizes requests
  Executor* completion = nullptr;     // builds response messages from engine results
  ShardedExecutor* writer = nullptr;  // passes chunks of streams to gRPC
  MemoryBudget* memory = nullptr;
  int64_t max_text_bytes = 1 << 20, max_message_bytes = 4 << 20;
  int64_t default_timeout_us = 60'000'000, max_timeout_us = 600'000'000;
  std::atomic<uint64_t> next_id{1};
  RpcRegistry rpcs;
  const ApiKeys* api_keys = nullptr;  // null: no API key is required

  // Counts calls that are rejected before their model is known: no API key, or no such model.
  RefusalMetrics* refusals = nullptr;
  const AccessLog* access_log = nullptr;  // null: off
  const Tracer* tracer = nullptr;         // null: requests are not traced
  const LoadMeter* load = nullptr;        // null: no load reports in responses

  // Writes the line of a call that has ended to the access log, and exports its spans if it is
  // recorded.
  void Record(const EndedCall& call) const;
  // Wakes `rpc` in a thread of `writer`. Throws std::bad_alloc; `rpc` is then not woken.
  void WakeSoon(std::shared_ptr<Rpc> rpc) const;
  // Returns the highest priority that the API key of an RPC allows. `authorization` is the value of
  // its authorization header; unset: none. Returns UNAUTHENTICATED if no key was sent, and
  // PERMISSION_DENIED if the key is unknown.
  absl::StatusOr<Priority> Authorize(std::optional<absl::string_view> authorization) const;
};

// The size of a call, which decides how much of the queue and of the memory budget it reserves.
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

  // Starts the call: checks it, admits it and posts its preparation. Must be called at most once.
  // `size` is the size of the engine requests that Prepare will create.
  void Start(const v1::CallOptions& options, const CallSize& size);
  // Cancels the engine requests of the call because its client has disconnected. May be called from
  // any thread at any time.
  void Cancel();
  // Ends the call while the engine is stuck, without waiting for the engine. The status is INTERNAL
  // if one of the call's requests has started, since that request may have caused the fault;
  // otherwise it is UNAVAILABLE.
  void Abandon();

 protected:
  // Whether the call needs a model; if so, the model must be ready. If false, host() must not be
  // called and Prepare must return no requests.
  virtual bool needs_model() const { return true; }
  // Creates the engine requests; the class Call then sets their deadline, priority and sink.
  virtual absl::StatusOr<std::vector<Request>> Prepare() = 0;
  // Upper bound, in bytes, of the memory that the response takes, computed before tokenization. The
  // bytes are reserved at admission. A call whose response would not fit into the memory budget is
  // therefore rejected before the response is computed.
  virtual int64_t ResponseBound() { return 0; }
  // Upper bound, in bytes, of the memory that the results of `requests` and the response take
  // together. These bytes are reserved before the requests are submitted.
  virtual int64_t ResponseMemory(const std::vector<Request>& requests) const;
  // Returns `status` with the field names of quintet.v1 replaced by those of the protocol in which
  // the client has sent the request.
  virtual absl::Status Renamed(const absl::Status& status) const { return status; }
  // Builds the response from the results of all requests, which are in the order of the requests.
  virtual absl::Status Respond(std::vector<Result> results) = 0;
  // Called once when the call has ended. No other virtual function is called afterwards.
  virtual void Ended(RpcOutcome outcome) = 0;
  // Called when the engine streams new tokens: `ids` and `text` of the sequence `index`.
  virtual void OnTokens(int index, std::span<const int32_t> ids, const std::string& text) {
    (void)index, (void)ids, (void)text;
  }

  const CallContext& context() const { return *context_; }
  const std::shared_ptr<Rpc>& rpc() const { return rpc_; }
  // Ends the call with `status`. Has no effect if the call has already ended.
  void End(const absl::Status& status);
  // Ends the call with RESOURCE_EXHAUSTED because an allocation has failed. Allocates nothing.
  void EndOutOfMemory();
  // Parses the request message into `proto`. If that fails, ends the call and returns false.
  bool Parse(grpc::ByteBuffer* message, google::protobuf::MessageLite* proto);
  // Reserves `bytes` in addition to the memory of the parsed request.
  absl::Status ReserveMemory(int64_t bytes) { return memory_.Resize(message_bytes_ + bytes); }
  // Serializes the response and lowers the memory reservation of the call to the serialized size.
  // The caller must have freed the request and the results. Throws std::bad_alloc.
  grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& answer);
  ModelHost& host() { return *host_; }
  const ModelHost& host() const { return *host_; }
  const v1::CallOptions& options() const { return options_; }
  InputLimits input_limits() const;
  void FillInfo(const std::vector<Result>& results, v1::CallInfo* info) const;

 private:
  class Sink;

  // Runs all checks that do not look at the inputs, finds the model, and reserves queue space.
  absl::Status Admit();
  // Reserves queue space. `host`: the model version that the call will use; null: unknown.
  absl::Status ReserveQueue(const ModelHost* host);
  // Waits until a version of the model is loaded, and then continues the call.
  void WaitForModel();
  void OnHost(absl::StatusOr<std::shared_ptr<ModelHost>> host);
  // Binds the call to a version of the model, and reserves memory.
  absl::Status Bind(std::shared_ptr<ModelHost> host);
  void PostPreparation();
  void PrepareAndSubmit();
  // Sets the adapter that the call names; an error if the model does not have it.
  void SetAdapter(absl::StatusOr<std::vector<Request>>* requests) const;
  void Submit(std::vector<Request> requests);
  absl::StatusOr<RequestId> SubmitOne(Request request);
  void OnResult(size_t index, absl::StatusOr<Result> result);
  void Complete();
  void EndWith(RpcOutcome outcome, const std::string& reason);
  // Writes the call to the access log, and exports its spans.
  void Record(const RpcOutcome& outcome, const std::string& reason);

  CallContext* const context_;
  const std::shared_ptr<Rpc> rpc_;
  const char* const name_;
  const RpcOrigin origin_;
  const StartedSpan span_;  // of this call
  v1::CallOptions options_;
  std::string request_id_;
  CallSize size_;
  std::shared_ptr<ServedModel> model_;  // null: not found yet, or the call needs none
  // The model version that the call uses, from admission to its end. The call keeps it alive.
  std::shared_ptr<ModelHost> host_;
  Priority priority_ = Priority::kNormal;
  int64_t arrival_us_ = 0, deadline_us_ = 0, tokenized_us_ = 0;

  MemoryReservation memory_;
  int64_t message_bytes_ = 0;   // part of memory_ that is reserved for the request message
  std::shared_ptr<Call> self_;  // set from Start until the call ends

  std::mutex mutex_;
  std::unique_ptr<EngineTrace> engine_trace_;  // null: the span is not recorded, or has ended
  uint64_t wait_ticket_ = 0;                   // of ServedModel::Wait; 0: the call has not waited
  Admission::Reservation queue_reservation_;   // held until the engine has started the last request
  size_t not_started_ = 0;                     // number of requests that the engine has not started
  size_t pending_ = 0;  // number of missing results, plus one while requests are submitted
  bool cancelled_ = false, ended_ = false, abandoned_ = false;
  absl::Status failure_;  // the first error of a request
  std::vector<RequestId> ids_;
  std::vector<int64_t> max_new_tokens_;
  std::vector<Result> results_;
  std::vector<bool> started_;
  // Values for the access log: the time at which the engine started the call's last request (0: not
  // yet), and the numbers of input tokens, of result tokens and of tokens in streamed chunks.
  int64_t started_us_ = 0, input_tokens_ = 0, output_tokens_ = 0, streamed_tokens_ = 0;
};

}  // namespace quintet
