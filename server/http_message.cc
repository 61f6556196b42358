#include "server/http_message.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "boost/beast/core/string.hpp"
#include "boost/beast/http/error.hpp"
#include "boost/beast/http/status.hpp"

namespace quintet {
namespace {

namespace http = boost::beast::http;

// Returns the path of a request target in origin form (/path?query) or absolute form
// (http://host/path).
absl::string_view PathOf(absl::string_view target) {
  if (absl::ConsumePrefix(&target, "http://")) {
    const size_t slash = target.find('/');
    target = slash == absl::string_view::npos ? "/" : target.substr(slash);
  }
  return target.substr(0, target.find('?'));
}

absl::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

HttpResponse PlainText(int status, std::string body) {
  HttpResponse response;
  response.status = status;
  response.body = std::make_shared<const std::string>(std::move(body));
  return response;
}

const char* HeaderError(const HttpParser& parser) {
  const auto& request = parser.get();
  if (request.version() == 11 && request.count(http::field::host) != 1)
    return "HTTP/1.1 requires exactly one Host header";
  // Without a known body length, the start of the next request on the connection is ambiguous,
  // which would permit request smuggling.
  if (request.count(http::field::transfer_encoding) > 0 && !parser.chunked())
    return "the only Transfer-Encoding supported is chunked";
  return nullptr;
}

bool Expects100Continue(const HttpParser& parser) {
  return parser.get().version() == 11 &&
         boost::beast::iequals(parser.get()[http::field::expect], "100-continue");
}

const HttpRoute* FindRoute(const HttpParser& parser, const std::vector<HttpRoute>& routes,
                           HttpResponse* refusal) {
  const auto& request = parser.get();
  const absl::string_view path = PathOf(View(request.target()));
  absl::string_view method = View(request.method_string());
  if (method == "HEAD") method = "GET";
  std::string allowed, paths;
  for (const HttpRoute& route : routes) {
    if (route.path == path && route.method == method) return &route;
    absl::StrAppend(&paths, paths.empty() ? "" : ", ", route.path);
    if (route.path != path) continue;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", route.method,
                    route.method == "GET" ? ", HEAD" : "");
  }
  if (allowed.empty()) {
    *refusal = PlainText(404, absl::StrCat("no such path; expected one of ", paths, "\n"));
  } else {
    *refusal = PlainText(405, absl::StrCat("method not allowed; expected ", allowed, "\n"));
    refusal->headers = absl::StrCat("Allow: ", allowed, "\r\n");
  }
  return nullptr;
}

HttpResponse MalformedResponse(boost::system::error_code error, size_t max_body_bytes) {
  if (error == http::error::header_limit) {
    return PlainText(
        431, absl::StrCat("request head too large: the limit is ", kMaxHttpHeadBytes, " bytes\n"));
  }
  if (error == http::error::body_limit || error == http::error::buffer_overflow) {
    return PlainText(
        413, absl::StrCat("request body too large: the limit is ", max_body_bytes, " bytes\n"));
  }
  return PlainText(400, absl::StrCat("malformed request: ", error.message(), "\n"));
}

std::string ResponseHead(const HttpResponse& response, bool keep_alive) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
  const size_t body_bytes = response.body == nullptr ? 0 : response.body->size();
  const std::string date =
      absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone());
  return absl::StrCat("HTTP/1.1 ", response.status, " ", View(reason), "\r\nDate: ", date,
                      "\r\nContent-Type: ", response.content_type,
                      "\r\nContent-Length: ", body_bytes, "\r\n", response.headers,
                      "Connection: ", keep_alive ? "keep-alive" : "close", "\r\n\r\n");
}

}  // namespace quintet
