// Errors of the HTTP API: the HTTP status of an RPC status, and the JSON objects of the clients.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/errors.h"
#include "server/http_server.h"

namespace quintet {

// The format of the error objects that a route returns.
//   kOpenAi: {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
//   kHuggingFace (TEI and TGI): {"error": ..., "error_type": ...}
enum class ErrorStyle : uint8_t { kOpenAi, kHuggingFace };

// The HTTP status of an RPC status: 400 INVALID_ARGUMENT, 401 UNAUTHENTICATED, 403
// PERMISSION_DENIED, 404 NOT_FOUND and UNIMPLEMENTED, 409 FAILED_PRECONDITION, 429
// RESOURCE_EXHAUSTED, 499 CANCELLED, 503 UNAVAILABLE, 504 DEADLINE_EXCEEDED, otherwise 500.
int HttpStatusOf(absl::StatusCode code);

// Names of request fields in quintet.v1 and in the JSON of a route, for errors:
// {"decoding.max_new_tokens", "max_tokens"}. A longer path keeps its end: "inputs[3].text" becomes
// "input[3]" by {"inputs", "input"}.
using JsonNames = std::vector<std::pair<std::string, std::string>>;

// Returns the message of an RPC with the name of its field replaced. Prefixes of quintet.v1
// (decoding., call., options.) are removed from names that `names` does not have.
std::string WithJsonNames(absl::string_view message, const JsonNames& names);

// The error object of an RPC that has failed. It has no line breaks. `message` replaces the one of
// the status.
std::string ErrorJson(ErrorStyle style, const RpcOutcome& outcome, const std::string& message);
// The error response: with Retry-After, and retry-after-ms, which OpenAI's clients read, if a retry
// may succeed.
HttpResponse ErrorResponse(ErrorStyle style, const RpcOutcome& outcome, const std::string& message);
// The response to a request that the HTTP server itself rejects with `status`.
HttpResponse RefusalResponse(int status, const std::string& text);

// Returns a response with a JSON body.
HttpResponse JsonResponse(int status, std::string body);

}  // namespace quintet
