// Sends finished spans to a trace collector by OTLP/HTTP with JSON (POST /v1/traces). A thread of
// its own sends batches from a bounded queue. A collector that is away, slow or failing delays no
// request: spans that find the queue full, or that the collector does not accept, are dropped and
// counted. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/http_post_client.h"
#include "server/otlp_json.h"
#include "server/span.h"

namespace quintet {

class SpanExporter {
 public:
  struct Options {
    HttpPostClient::Options http;
    bool gzip = false;
    ResourceAttributes resource;
    std::chrono::milliseconds timeout{10'000};  // of one request to the collector
    std::chrono::milliseconds delay{1'000};     // how long spans wait for others of their batch
    size_t max_queued = 4096;                   // spans
    size_t max_batch = 512;                     // spans of one request to the collector
  };
  // INVALID_ARGUMENT: the CA file cannot be used.
  static absl::StatusOr<std::unique_ptr<SpanExporter>> Start(Options options);
  // Calls Shutdown with a limit of 0.
  ~SpanExporter();

  // Queues spans. Drops all of them if the queue has no room for all. Never waits for the
  // collector.
  void Add(std::vector<Span> spans);
  // Sends the queued spans and ends the thread, within `limit` and a fraction of a second; drops
  // those that are left. If the host's name is being resolved meanwhile, the thread ends later.
  void Shutdown(std::chrono::milliseconds limit);

  // Numbers of spans since the start.
  int64_t exported() const;
  int64_t dropped_queue_full() const;
  int64_t dropped_not_accepted() const;
  // Counts spans that were lost for lack of memory as dropped_queue_full.
  void CountLost(int64_t spans);

 private:
  struct State;
  explicit SpanExporter(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;  // shared with the thread, which may live longer
};

}  // namespace quintet
