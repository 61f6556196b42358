// The HTTP API (--http-api-listen): the routes of ApiRoutes(), /health, /openapi.json and a web
// page for browsers (page.h). It runs the methods of quintet.v1 (api_call.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api_call.h"
#include "server/health.h"
#include "server/http_server.h"
#include "server/tls_context.h"

namespace quintet {

class HttpApi {
 public:
  struct Options {
    std::string listen;  // HOST:PORT
    std::string version;
    bool page = false;             // also serves the page (page.h)
    CallContext* calls = nullptr;  // this and the next two must outlive the API
    const HealthStatus* health = nullptr;
    const TlsContext* tls = nullptr;  // null: plaintext
    ClientTimeouts timeouts;
    std::vector<Method> methods;  // of quintet.v1
  };
  // Starts to serve. INVALID_ARGUMENT: cannot listen on `options.listen`.
  static absl::StatusOr<std::unique_ptr<HttpApi>> Start(Options options);
  // Closes all connections and cancels their calls, which may end later.
  ~HttpApi() = default;

  int port() const { return server_->port(); }
  // Whether a request is being handled or a response is being sent.
  bool busy() const { return server_->busy() > 0; }
  size_t connections() const { return server_->connections(); }
  // Closes each connection after its next response.
  void Drain() { server_->Drain(); }

 private:
  explicit HttpApi(Options options);
  // Returns an error response if the header fields of a request are not acceptable, otherwise
  // nullopt. A request must have a valid API key if the server has API keys; a POST must also have
  // a JSON Content-Type and an uncompressed body. /health and the web page are exempt.
  std::optional<HttpResponse> Check(const HttpRequest& request) const;
  std::vector<HttpRoute> Routes() const;

  const Options options_;
  const std::shared_ptr<const ApiContext> context_;  // also of calls that outlive this object
  std::unique_ptr<HttpServer> server_;  // the last member: its threads use the members above
};

// The OpenAPI 3.1 document of the routes. `version` is that of the program.
std::string OpenApiDocument(const std::string& version);

}  // namespace quintet
