// One request to a route of the HTTP API: it is translated, runs as one or more RPCs of quintet.v1,
// and ends with a JSON response or a stream of server-sent events. These RPCs run the same code as
// RPCs of gRPC clients: validation, admission, limits, deadlines, metrics and the access log.
//
// Threads: the request is translated on a `tokenize` thread, and responses on a `respond` thread.
// A chunk of a stream is translated on the `write` thread or, if it had to wait until the kernel
// took the previous bytes of the stream, on the I/O thread of the HTTP server. Waiting chunks of an
// RPC are merged.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/checkpoint/json.h"
#include "server/api_route.h"
#include "server/call.h"
#include "server/client_timeouts.h"
#include "server/http_server.h"
#include "server/local_rpc.h"
#include "server/methods.h"

namespace quintet {

// State shared by all requests of the HTTP API. Owned by HttpApi.
struct ApiContext {
  CallContext* calls = nullptr;
  ClientTimeouts timeouts;
  std::vector<Method> methods;  // of quintet.v1

  // Returns the method of this name ("Generate"), which must exist.
  const Method& Find(absl::string_view name) const;
  // Counts a request that has failed before an RPC was started, and writes it to the access log.
  void Refused(absl::string_view path, const TraceId& trace, const absl::Status& status) const;
};

// The trace context in the headers of a request. Throws std::bad_alloc.
TraceContext TraceContextOf(const HttpRequest& request);

class ApiCall final : public HttpHandler,
                      public LocalClient,
                      public std::enable_shared_from_this<ApiCall> {
 public:
  ApiCall(std::shared_ptr<const ApiContext> context, const ApiRoute* route,
          std::shared_ptr<HttpExchange> exchange)
      : context_(std::move(context)), route_(route), exchange_(std::move(exchange)) {}

  // Posts a task that converts the request to RPCs and starts them. Throws std::bad_alloc.
  void Start();

  void OnDrained() override;
  void OnDone(bool sent) override;

  void OnMessage(size_t index, const grpc::ByteBuffer& message) override;
  void OnEnd(size_t index, grpc::ByteBuffer* last, const RpcOutcome& outcome) override;
  void OnCutOff() override { exchange_->Abort(); }

 private:
  struct Part {  // one RPC
    std::shared_ptr<LocalRpc> rpc;
    bool unwritten = false;  // a chunk of it has been passed on, but not read by the client
    bool ended = false;      // OnEnd was called
    bool closed = false;     // LocalRpc::OnEnded was called
    grpc::ByteBuffer last;
    RpcOutcome outcome;
  };

  void Translate();
  absl::Status ReadRequest();
  absl::Status CheckHeaders();
  // Acquires the model version that all RPCs of the request use. Returns false if none is loaded
  // yet: the request waits, and OnHost is called later with the version or an error.
  absl::StatusOr<bool> BindModel();
  void OnHost(absl::StatusOr<std::shared_ptr<ModelHost>> host);
  void StopWaiting();
  // Translates the request and starts its RPCs.
  void Run();
  absl::Status StartRpcs();
  void FailUnstarted(const absl::Status& status);
  // Closes the RPCs from `first` on, which were not started because memory ran out.
  void DropUnstarted(size_t first);
  // Handles RPCs that have ended since the last call.
  void Advance();
  // Enlarges the reservation memory_ by the response of RPC `index` and the JSON made of it.
  absl::Status TakeResponse(size_t index);
  void Finish();
  // If the request has not ended, ends it with the error of RPC `index` and cancels the other RPCs.
  void Fail(const RpcOutcome& outcome, size_t index);
  void CancelAll();
  // Closes the ended RPC `index`. If no RPC of the request is left open, finishes the response.
  void Close(size_t index);
  // Sends events. Starts the stream with the first ones.
  void WriteLocked(const std::string& events);
  std::string HeadersOf() const;
  void ExportSpan();

  const std::shared_ptr<const ApiContext> context_;
  const ApiRoute* const route_;
  const std::shared_ptr<HttpExchange> exchange_;
  StartedSpan span_;  // of this request
  std::string request_id_;
  JsonDocument body_ = nlohmann::json::object();
  int64_t arrival_us_ = 0;
  std::optional<int64_t> timeout_us_;
  ModelBinding binding_;
  Priority max_priority_ = Priority::kHigh;
  std::optional<RpcRegistry::Registration> registration_;  // of the first RPC, until it starts
  // For the JSON of the request, then of the response. Used by one thread at a time: by the task
  // that prepares the request, then by those that receive its responses. Released by the
  // destructor.
  std::optional<MemoryReservation> memory_;

  std::mutex mutex_;
  uint64_t wait_ticket_ = 0;        // of ServedModel::Wait; 0: the request does not wait
  Admission::Reservation waiting_;  // room in the queue of the model meanwhile
  std::shared_ptr<ApiCall> self_;   // set while RPCs are open
  std::unique_ptr<Translation> translation_;
  std::vector<Part> parts_;  // constant size once RPCs have started
  size_t open_ = 0;          // RPCs that are not closed
  int64_t request_bytes_ = 0, response_bytes_ = 0;
  bool begun_ = false;     // the stream has begun
  bool finished_ = false;  // the response is complete, or the client has gone
  int status_ = 0;         // HTTP status of the response; 0: it has not begun
};

}  // namespace quintet
