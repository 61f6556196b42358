// Errors of the HTTP API: an RPC status as an HTTP status, and as the JSON that clients expect.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/errors.h"
#include "server/field_names.h"
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

// Returns the error text `message` of an RPC with the field path of quintet.v1 replaced by the name
// that the field has in the JSON of a route: its name in `names`, otherwise the path without
// "decoding.", "call." or "options.".
std::string WithJsonNames(absl::string_view message, FieldRenames names);

// The error object of an RPC that has failed. It has no line breaks. `message` replaces the message
// of the status.
std::string ErrorJson(ErrorStyle style, const RpcOutcome& outcome, const std::string& message);
// Returns the error response. If a retry may succeed, it has the headers Retry-After and
// retry-after-ms; OpenAI's clients read the latter.
HttpResponse ErrorResponse(ErrorStyle style, const RpcOutcome& outcome, const std::string& message);
// The response to a request that the HTTP server itself rejects with `status`.
HttpResponse RefusalResponse(int status, const std::string& text);

// Returns a response with a JSON body.
HttpResponse JsonResponse(int status, std::string body);

}  // namespace quintet
