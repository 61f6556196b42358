// Tests of the parts of the HTTP API that need no server: errors, templates, the table of routes.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/api_errors.h"
#include "server/api_rerank.h"
#include "server/api_route.h"
#include "server/http_api.h"
#include "server/text_templates.h"
#include "tests/catch.h"

namespace quintet {
namespace {

using nlohmann::json;

TEST_CASE("Each RPC status has the HTTP status of the table", "[api]") {
  using Code = absl::StatusCode;
  const std::pair<Code, int> kStatuses[] = {{Code::kInvalidArgument, 400},
                                            {Code::kUnauthenticated, 401},
                                            {Code::kPermissionDenied, 403},
                                            {Code::kNotFound, 404},
                                            {Code::kFailedPrecondition, 409},
                                            {Code::kResourceExhausted, 429},
                                            {Code::kCancelled, 499},
                                            {Code::kInternal, 500},
                                            {Code::kUnknown, 500},
                                            {Code::kUnavailable, 503},
                                            {Code::kDeadlineExceeded, 504}};
  for (const auto& [code, status] : kStatuses) {
    const RpcOutcome outcome =
        ToRpcOutcome(absl::Status(code, "max_tokens: bad"), "q1", absl::Milliseconds(700));
    const HttpResponse response = ErrorResponse(ErrorStyle::kOpenAi, outcome, "max_tokens: bad");
    CHECK(response.status == status);
    const json error = json::parse(*response.body)["error"];
    CHECK(error["param"] == "max_tokens");
    CHECK(error["message"] == "max_tokens: bad");
    const bool retry = status == 429 || status == 503;
    CHECK(absl::StrContains(response.headers, "Retry-After: 1\r\nretry-after-ms: ") == retry);
    const json other = json::parse(*ErrorResponse(ErrorStyle::kHuggingFace, outcome, "text").body);
    CHECK(other["error"] == "text");
    CHECK(other["error_type"].is_string());
  }
}

TEST_CASE("Names of fields in errors become those of the JSON", "[api]") {
  const FieldRenames names = {{"decoding.max_new_tokens", "max_tokens"}, {"inputs", "input"}};
  const std::pair<const char*, const char*> kMessages[] = {
      {"decoding.max_new_tokens: 0 is bad", "max_tokens: 0 is bad"},
      {"decoding.max_new_tokens_x: bad", "max_new_tokens_x: bad"},
      {"decoding.top_k: bad", "top_k: bad"},
      {"call.model: must name one", "model: must name one"},
      {"options.pooling: must be 0", "pooling: must be 0"},
      {"inputs[3].text: too long", "input[3]: too long"},
      {"inputs[3].token_ids.ids[7]: bad", "input[3][7]: bad"},
      {"decoding.decoder_prefix.token_ids.ids[7]: bad", "decoder_prefix[7]: bad"},
      {"queue full: 3 requests", "queue full: 3 requests"},
      {"no field", "no field"}};
  for (const auto& [from, to] : kMessages) CHECK(WithJsonNames(from, names) == to);
}

TEST_CASE("Floats keep their bits in JSON", "[api]") {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const uint32_t bits = random();
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    std::string text;
    AppendFloat(value, &text);
    if (!std::isfinite(value)) {
      CHECK(text == "null");
      continue;
    }
    const auto parsed = static_cast<float>(json::parse(text).get<double>());
    uint32_t found = 0;
    std::memcpy(&found, &parsed, sizeof(found));
    if (found != bits) FAIL(text << " of " << bits);
  }
}

TEST_CASE("Templates replace placeholders once", "[api]") {
  CHECK(FillTemplate("{role}: {content}\n", {{"role", "user"}, {"content", "{role} {x"}}) ==
        "user: {role} {x\n");
  CHECK(FillTemplate("a {b} {", {{"role", "x"}}) == "a {b} {");
  CHECK(FillTemplate("", {{"role", "x"}}).empty());
}

TEST_CASE("Templates are checked when the configuration is read", "[api]") {
  const auto error = [](const TextTemplates& templates) {
    return std::string(CheckTemplates(templates).message());
  };
  CHECK(error({}).empty());
  CHECK(error({.chat_message = "{content}", .chat_end = "x"}).empty());
  CHECK(error({.chat_message = "text"}) == "chat-message: must contain {content}");
  CHECK(error({.chat_end = "x"}) == "chat-end: needs chat-message");
  const std::string pair = "{query} {document}";
  CHECK(error({.rerank = pair, .rerank_true = "a", .rerank_false = "b"}).empty());
  CHECK(error({.rerank = "{document}", .rerank_target = "{query}"}).empty());
  CHECK(absl::StartsWith(error({.rerank = pair}), "rerank: needs either"));
  CHECK(absl::StartsWith(error({.rerank = pair, .rerank_true = "a"}), "rerank-true and"));
  CHECK(absl::StartsWith(error({.rerank_target = "a"}), "rerank-true, rerank-false"));
  CHECK(error({.rerank = "{document}", .rerank_true = "a", .rerank_false = "b"}) ==
        "rerank: must contain {query}");
  CHECK(error({.rerank = "{query}", .rerank_target = "x"}) == "rerank: must contain {document}");
}

TEST_CASE("The table of routes and its OpenAPI document agree", "[api]") {
  std::set<std::pair<std::string, std::string>> seen;
  const json document = json::parse(OpenApiDocument("test"));
  for (const ApiRoute& route : ApiRoutes()) {
    INFO(route.path);
    CHECK(seen.emplace(route.method, route.path).second);
    std::set<std::string> names;
    for (const ApiField& field : route.fields) CHECK(names.insert(field.name).second);
    std::string path = route.path;
    if (absl::EndsWith(path, "*")) path = path.substr(0, path.size() - 1) + "{id}";
    const json& operation = document["paths"][path][absl::AsciiStrToLower(route.method)];
    REQUIRE(operation.is_object());
    if (std::string(route.method) == "GET") continue;
    const json& schema = operation["requestBody"]["content"]["application/json"]["schema"];
    CHECK(schema["properties"].size() == route.fields.size());
    CHECK(schema["additionalProperties"] == false);
  }
  CHECK(document["paths"].contains("/health"));
}

TEST_CASE("The cosine of vectors", "[api]") {
  const auto bytes = [](std::vector<float> values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  CHECK(Cosine(bytes({3, 4}), bytes({6, 8})) == Approx(1));
  CHECK(Cosine(bytes({1, 0}), bytes({0, 5})) == 0);
  CHECK(Cosine(bytes({1, 0}), bytes({-2, 0})) == Approx(-1));
  CHECK(Cosine(bytes({0, 0}), bytes({1, 1})) == 0);
}

}  // namespace
}  // namespace quintet
