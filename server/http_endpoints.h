// The operator's side, on its own HTTP port: /metrics (Prometheus text), /healthz (200 while the
// engines show signs of life, loading included), /readyz (200 only while every model takes calls).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "prometheus/registry.h"

namespace quintet {

class HttpEndpoints {
 public:
  struct Options {
    std::string listen;             // host:port
    std::function<void()> collect;  // brings the registry up to date before a scrape
    std::function<bool()> healthy, ready;
  };
  // `registry` outlives the endpoints.
  static absl::StatusOr<std::unique_ptr<HttpEndpoints>> Start(Options options,
                                                              prometheus::Registry* registry);
  virtual ~HttpEndpoints() = default;
};

}  // namespace quintet
