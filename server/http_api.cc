#include "server/http_api.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "server/page.h"

namespace quintet {
namespace {

constexpr char kHealth[] = "/health";
constexpr size_t kMaxConnections = 16384;

bool IsJson(absl::string_view content_type) {
  const absl::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type), "application/json");
}

}  // namespace

HttpApi::HttpApi(Options options)
    : options_(std::move(options)),
      context_(std::make_shared<ApiContext>(
          ApiContext{options_.calls, options_.timeouts, options_.methods})) {}

std::optional<HttpResponse> HttpApi::Check(const HttpRequest& request) const {
  const absl::string_view path = PathOf(request.target);
  if (path == kHealth) return std::nullopt;
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (options_.page && reads && IsPagePath(path)) return std::nullopt;
  const absl::Status key = options_.calls->Authorize(request.Header("authorization")).status();
  if (!key.ok()) {
    context_->Refused("", TraceContextOf(request).trace_id, key);
    const RpcOutcome outcome = ToRpcOutcome(key, "", absl::Milliseconds(200));
    return ErrorResponse(ErrorStyle::kOpenAi, outcome, outcome.status.error_message());
  }
  if (request.method != "POST") return std::nullopt;
  if (!IsJson(request.Header("content-type").value_or(""))) {
    // This check stops cross-site requests: a browser sends JSON to another site only if that site
    // permits it (CORS).
    return RefusalResponse(415, "header Content-Type: expected application/json");
  }
  if (request.Header("content-encoding").value_or("identity") != "identity") {
    return RefusalResponse(415, "header Content-Encoding: compressed bodies are not supported");
  }
  return std::nullopt;
}

std::vector<HttpRoute> HttpApi::Routes() const {
  std::vector<HttpRoute> routes;
  for (const ApiRoute& route : ApiRoutes()) {
    HttpRoute& to = routes.emplace_back();
    to.method = route.method;
    to.path = route.path;
    to.start = [this, &route](std::shared_ptr<HttpExchange> exchange) {
      auto call = std::make_shared<ApiCall>(context_, &route, std::move(exchange));
      call->Start();
      return call;
    };
  }
  routes.push_back({"GET", kHealth, HttpRoute::Thread::kIo, [this](const HttpRequest&) {
                      const bool serving = options_.health->serving();
                      return JsonResponse(serving ? 200 : 503, serving
                                                                   ? R"({"status":"ok"})"
                                                                   : R"({"status":"unavailable"})");
                    }});
  const auto document = std::make_shared<const std::string>(OpenApiDocument(options_.version));
  routes.push_back({"GET", "/openapi.json", HttpRoute::Thread::kIo, [document](const HttpRequest&) {
                      HttpResponse response;
                      response.content_type = "application/json";
                      response.body = document;
                      return response;
                    }});
  if (options_.page) {
    for (HttpRoute& route : PageRoutes()) routes.push_back(std::move(route));
  }
  return routes;
}

absl::StatusOr<std::unique_ptr<HttpApi>> HttpApi::Start(Options options) {
  std::unique_ptr<HttpApi> api(new HttpApi(std::move(options)));
  HttpServer::Options http;
  http.flag = "--http-api-listen";
  http.listen = api->options_.listen;
  if (const TlsContext* const tls = api->options_.tls; tls != nullptr) {
    http.tls = [tls] { return tls->current(); };
  }
  http.check = [raw = api.get()](const HttpRequest& request) { return raw->Check(request); };
  http.refusal = RefusalResponse;
  http.max_connections = kMaxConnections;
  http.files_share = 0.5;  // the rest is for gRPC, model files and --http-listen
  http.max_body_bytes = static_cast<size_t>(api->options_.calls->max_message_bytes);
  http.max_received_bytes = std::max<size_t>(http.max_received_bytes, 4 * http.max_body_bytes);
  http.max_unsent_bytes = size_t{256} << 20;
  http.request_timeout = std::chrono::milliseconds(30'000);
  http.write_timeout = std::chrono::milliseconds(api->options_.timeouts.write_us / 1000);
  QT_ASSIGN_OR_RETURN(api->server_, HttpServer::Start(std::move(http), api->Routes()));
  return api;
}

}  // namespace quintet
