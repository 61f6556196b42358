// Fuzz target: any bytes as the body of a request to the HTTP API. Every body must give either the
// messages of RPCs, which parse and whose errors can be said in JSON, or a clear error. Byte 0
// selects the route.
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"
#include "models/checkpoint/json.h"
#include "server/api_route.h"
#include "server/handlers.h"
#include "server/model_host.h"

namespace quintet {
namespace {

// A context with the shipped model, which takes chats and can rerank.
const CallContext& Context() {
  static ThreadPool* const pool = new ThreadPool(1);
  static auto* const registry = new prometheus::Registry();
  static const CallContext* const context = [] {
    HostOptions options;
    options.name = "g2p";
    options.directory = absl::StrCat(QUINTET_SOURCE_DIR, "/deploy/models/g2p");
    options.limits.cache_bytes = 1 << 20;
    options.templates = {"{role}: {content}\n", "", "{query} {document}", "A", "B", ""};
    auto* const host = new ModelHost(options, pool, registry);
    QT_CHECK(host->Prepare().ok());
    QT_CHECK(host->Load(/*encoder_cache_bytes=*/0).ok());
    auto* const made = new CallContext();
    made->hosts = {host};
    return made;
  }();
  return *context;
}

void CheckRefusal(const absl::Status& status, ErrorStyle style) {
  QT_CHECK(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
           absl::IsNotFound(status));
  const RpcOutcome outcome = ToRpcOutcome(status, "fuzz", absl::Milliseconds(200));
  const HttpResponse response = ErrorResponse(style, outcome, std::string(status.message()));
  QT_CHECK_GE(response.status, 400);
  QT_CHECK_LT(response.status, 500);
  for (const char c : *response.body) QT_CHECK(c != '\n' && c != '\r');
}

// Runs the checks of a Generate call, whose options have the most forms.
void CheckGenerate(const grpc::ByteBuffer& message) {
  const auto proto = Parsed<v1::GenerateRequest>(message);
  if (!CheckCallOptions(proto.call()).ok() || !Context().Find(proto.call().model()).ok()) return;
  const ModelHost& host = *Context().hosts[0];
  InputLimits limits;
  limits.vocab = host.config().vocab;
  const absl::Status status = GenerateRequests(proto, host, limits, /*stream=*/true).status();
  if (!status.ok()) CheckRefusal(status, ErrorStyle::kOpenAi);
}

void Run(const ApiRoute& route, std::string_view text) {
  const auto body = ParseJson(text, "body", 16);
  if (!body.ok()) return CheckRefusal(body.status(), route.style);
  if (const absl::Status status = CheckKnownFields(route, *body); !status.ok()) {
    for (const char c : status.message()) {
      QT_CHECK(absl::ascii_isprint(static_cast<unsigned char>(c)));
    }
    return CheckRefusal(status, route.style);
  }
  HttpRequest request;
  request.method = route.method;
  request.target = route.path;
  const auto translation = route.translate({request, *body, "fuzz", Context()});
  if (!translation.ok()) return CheckRefusal(translation.status(), route.style);
  QT_CHECK_GE((*translation)->rpcs().size(), 1u);
  QT_CHECK_LE((*translation)->rpcs().size(), 64u);
  for (size_t i = 0; i < (*translation)->rpcs().size(); ++i) {
    (*translation)->names(i);
    const Translation::RpcOfRequest& rpc = (*translation)->rpcs()[i];
    if (rpc.method == "Generate" || rpc.method == "GenerateStream") CheckGenerate(rpc.message);
  }
}

}  // namespace
}  // namespace quintet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quintet;
  if (size < 1) return 0;
  const std::vector<ApiRoute>& routes = ApiRoutes();
  Run(routes[data[0] % routes.size()],
      std::string_view(reinterpret_cast<const char*>(data + 1), size - 1));
  return 0;
}
