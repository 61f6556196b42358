#include "server/http_endpoints.h"

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "server/metrics_text.h"

namespace quintet {
namespace {

HttpRoute Probe(const char* path, const std::function<bool()>& probe) {
  return {"GET", path, HttpRoute::Thread::kIo, [&probe](const HttpRequest&) {
            return probe() ? PlainText(200, "ok\n") : PlainText(503, "unavailable\n");
          }};
}

}  // namespace

HttpEndpoints::HttpEndpoints(Options options, prometheus::Registry* registry)
    : options_(std::move(options)), registry_(registry) {}

HttpResponse HttpEndpoints::Metrics(const HttpRequest& request) {
  // A request that was received before the last collection began gets the text of that collection.
  // A request that was received later starts a new collection.
  if (metrics_ == nullptr || metrics_since_ < request.received) {
    const auto now = std::chrono::steady_clock::now();
    options_.collect();
    metrics_ = std::make_shared<const std::string>(MetricsText(registry_->Collect()));
    metrics_since_ = now;
  }
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_;
  return response;
}

absl::Status HttpEndpoints::Listen() {
  std::vector<HttpRoute> routes;
  routes.push_back(Probe("/healthz", options_.healthy));
  routes.push_back(Probe("/readyz", options_.ready));
  routes.push_back({"GET", "/metrics", HttpRoute::Thread::kWorker,
                    [this](const HttpRequest& request) { return Metrics(request); }});
  HttpServer::Options options;
  options.listen = options_.listen;
  QT_ASSIGN_OR_RETURN(server_, HttpServer::Start(std::move(options), std::move(routes)));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HttpEndpoints>> HttpEndpoints::Start(
    Options options, prometheus::Registry* registry) {
  std::unique_ptr<HttpEndpoints> endpoints(new HttpEndpoints(std::move(options), registry));
  QT_RETURN_IF_ERROR(endpoints->Listen());
  return endpoints;
}

}  // namespace quintet
