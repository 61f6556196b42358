// The OpenAPI document of the HTTP API, from the table of its routes.
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "server/api_route.h"
#include "server/http_api.h"

namespace quintet {
namespace {

using Json = JsonValue;

Json SchemaOf(const ApiRoute& route) {
  Json properties = Json::Object(), required = Json::Array();
  for (const ApiField& field : route.fields) {
    Json& property = properties[field.name] = Json::Object();
    if (field.type != "any") property["type"] = field.type;
    property["description"] = field.text;
    if (field.required) required.push_back(field.name);
  }
  Json schema = {
      {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  if (!required.empty()) schema["required"] = std::move(required);
  return schema;
}

Json OperationOf(const ApiRoute& route) {
  Json content = {{"application/json", Json::Object()}};
  if (route.streams) content["text/event-stream"] = Json::Object();
  Json responses = {{"200", {{"description", "The answer."}, {"content", std::move(content)}}},
                    {"default",
                     {{"description", "An error object; server/HTTP.md lists the statuses."},
                      {"content", {{"application/json", Json::Object()}}}}}};
  Json operation = {{"summary", route.summary}, {"responses", std::move(responses)}};
  if (absl::string_view(route.method) == "POST") {
    operation["requestBody"] = {{"required", true},
                                {"content", {{"application/json", {{"schema", SchemaOf(route)}}}}}};
  }
  if (absl::EndsWith(route.path, "*")) {
    operation["parameters"] = Json::Array(
        {{{"name", "id"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
  }
  return operation;
}

}  // namespace

std::string OpenApiDocument(const std::string& version) {
  Json paths = Json::Object();
  for (const ApiRoute& route : ApiRoutes()) {
    std::string path(absl::StripSuffix(route.path, "*"));
    if (path != route.path) path += "{id}";
    paths[path][absl::AsciiStrToLower(route.method)] = OperationOf(route);
  }
  for (const auto& [path, summary] :
       {std::pair("/health", "Whether requests are served"), std::pair("/openapi.json", "This")}) {
    paths[path]["get"] = {{"summary", summary},
                          {"responses", {{"200", {{"description", "The answer."}}}}}};
  }
  return JsonText({{"openapi", "3.1.0"},
                   {"info", {{"title", "Quintet"}, {"version", version}}},
                   {"paths", std::move(paths)}});
}

}  // namespace quintet
