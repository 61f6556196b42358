#include "server/api_errors.h"

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/json_value.h"

namespace quintet {
namespace {

const char* OpenAiType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 409:
      return "conflict_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

const char* HuggingFaceType(int status) {
  if (status == 429) return "overloaded";
  if (status == 503) return "unhealthy";
  if (status == 404) return "not_found";
  if (status == 401 || status == 403) return "unauthorized";
  return status < 500 ? "validation" : "backend";
}

std::string ObjectOf(ErrorStyle style, int status, const std::string& message,
                     const std::string& code) {
  if (style == ErrorStyle::kHuggingFace) {
    return JsonText({{"error", message}, {"error_type", HuggingFaceType(status)}});
  }
  const absl::string_view field = FieldOf(message);
  JsonValue error = {{"message", message}, {"type", OpenAiType(status)}};
  error["param"] = field.empty() ? JsonValue() : JsonValue(std::string(field));
  error["code"] = code.empty() ? JsonValue() : JsonValue(code);
  return JsonText({{"error", std::move(error)}});
}

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string WithJsonNames(absl::string_view message, FieldRenames names) {
  for (const char* prefix : {"decoding.", "call.", "options."}) names.emplace_back(prefix, "");
  return RenamedField(message, names);
}

std::string ErrorJson(ErrorStyle style, const RpcOutcome& outcome, const std::string& message) {
  const auto code = static_cast<absl::StatusCode>(outcome.status.error_code());
  return ObjectOf(style, HttpStatusOf(code), message, outcome.reason);
}

HttpResponse ErrorResponse(ErrorStyle style, const RpcOutcome& outcome,
                           const std::string& message) {
  const auto code = static_cast<absl::StatusCode>(outcome.status.error_code());
  HttpResponse response = JsonResponse(HttpStatusOf(code), ErrorJson(style, outcome, message));
  int64_t pushback_ms = 0;
  if (absl::SimpleAtoi(outcome.pushback_ms, &pushback_ms)) {
    response.headers = absl::StrCat("Retry-After: ", (pushback_ms + 999) / 1000,
                                    "\r\nretry-after-ms: ", pushback_ms, "\r\n");
  }
  if (code == absl::StatusCode::kUnauthenticated)
    response.headers += "WWW-Authenticate: Bearer\r\n";
  return response;
}

HttpResponse RefusalResponse(int status, const std::string& text) {
  const std::string message(absl::StripSuffix(text, "\n"));
  return JsonResponse(status, ObjectOf(ErrorStyle::kOpenAi, status, message, ""));
}

HttpResponse JsonResponse(int status, std::string body) {
  HttpResponse response;
  response.status = status;
  response.content_type = "application/json";
  response.body = std::make_shared<const std::string>(std::move(body));
  return response;
}

}  // namespace quintet
