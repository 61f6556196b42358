#include "server/http_endpoints.h"

#include <CivetServer.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/text_serializer.h"

namespace quintet {
namespace {

void Answer(mg_connection* connection, int code, const char* type, const std::string& body) {
  mg_printf(
      connection,
      "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
      code, code == 200 ? "OK" : "Service Unavailable", type, body.size());
  mg_write(connection, body.data(), body.size());
}

class MetricsHandler : public CivetHandler {
 public:
  MetricsHandler(std::function<void()> collect, prometheus::Registry* registry)
      : collect_(std::move(collect)), registry_(registry) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    collect_();
    Answer(connection, 200, "text/plain; version=0.0.4; charset=utf-8",
           prometheus::TextSerializer().Serialize(registry_->Collect()));
    return true;
  }

 private:
  std::function<void()> collect_;
  prometheus::Registry* registry_;
};

class ProbeHandler : public CivetHandler {
 public:
  explicit ProbeHandler(std::function<bool()> probe) : probe_(std::move(probe)) {}
  bool handleGet(CivetServer*, mg_connection* connection) override {
    const bool good = probe_();
    Answer(connection, good ? 200 : 503, "text/plain", good ? "ok\n" : "unavailable\n");
    return true;
  }

 private:
  std::function<bool()> probe_;
};

class CivetEndpoints : public HttpEndpoints {
 public:
  CivetEndpoints(Options options, prometheus::Registry* registry)
      : metrics_(std::move(options.collect), registry),
        healthz_(std::move(options.healthy)),
        readyz_(std::move(options.ready)),
        server_(std::vector<std::string>{"listening_ports", options.listen, "num_threads", "2",
                                         "enable_directory_listing", "no", "request_timeout_ms",
                                         "5000"}) {
    server_.addHandler("/metrics", metrics_);
    server_.addHandler("/healthz", healthz_);
    server_.addHandler("/readyz", readyz_);
  }

 private:
  MetricsHandler metrics_;
  ProbeHandler healthz_, readyz_;
  CivetServer server_;  // last: stops before its handlers go
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoints>> HttpEndpoints::Start(
    Options options, prometheus::Registry* registry) {
  const std::string listen = options.listen;
  try {
    return std::make_unique<CivetEndpoints>(std::move(options), registry);
  } catch (const CivetException&) {
    return absl::InvalidArgumentError(absl::StrCat("--http-listen: cannot listen on ", listen));
  }
}

}  // namespace quintet
