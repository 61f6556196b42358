// HTTP endpoints for operators, on a separate port: /metrics (Prometheus text), /healthz (200 while
// the engines make progress or models load) and /readyz (200 only while every model is served).
// Collecting metrics does not delay the two probes.
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
    std::function<void()> collect;         // updates the registry before each scrape; may block
    std::function<bool()> healthy, ready;  // results of the two probes; must not block
  };
  // Starts to serve. `registry` must outlive the endpoints. INVALID_ARGUMENT: cannot listen on
  // `options.listen`.
  static absl::StatusOr<std::unique_ptr<HttpEndpoints>> Start(Options options,
                                                              prometheus::Registry* registry);

  int port() const { return server_->port(); }

 private:
  HttpEndpoints(Options options, prometheus::Registry* registry);
  absl::Status Listen();
  // Handles /metrics. Runs only on the worker thread of the HTTP server.
  HttpResponse Metrics(const HttpRequest& request);

  const Options options_;
  prometheus::Registry* const registry_;
  std::shared_ptr<const std::string> metrics_;  // body of the last response; initially null
  std::chrono::steady_clock::time_point metrics_since_;  // start of the collection of metrics_
  std::unique_ptr<HttpServer> server_;  // the last member: its threads use the members above
};

}  // namespace quintet
