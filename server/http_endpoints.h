// Endpoints for operators, on an HTTP port of their own: /metrics (Prometheus text), /healthz (200
// while the engines make progress or models load), /readyz (200 only while every model is served).
// Probes are answered while metrics are collected.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/registry.h"
#include "server/http_server.h"

namespace quintet {

class HttpEndpoints {
 public:
  struct Options {
    std::string listen;                    // HOST:PORT
    std::function<void()> collect;         // updates the registry before a scrape; may block
    std::function<bool()> healthy, ready;  // must not block
  };
  // `registry` outlives the endpoints. INVALID_ARGUMENT: cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpEndpoints>> Start(Options options,
                                                              prometheus::Registry* registry);

  int port() const { return server_->port(); }

 private:
  HttpEndpoints(Options options, prometheus::Registry* registry);
  absl::Status Listen();
  // On the worker thread alone.
  HttpResponse Metrics(const HttpRequest& request);

  const Options options_;
  prometheus::Registry* const registry_;
  std::shared_ptr<const std::string> metrics_;           // the last answer, null at first
  std::chrono::steady_clock::time_point metrics_since_;  // when its collection began
  std::unique_ptr<HttpServer> server_;                   // last: its threads use the members above
};

}  // namespace quintet
