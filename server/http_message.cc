#include "server/http_message.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
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

HttpRequest RequestOf(const HttpParser& parser) {
  const auto& from = parser.get();
  HttpRequest request;
  request.method = std::string(View(from.method_string()));
  request.target = std::string(View(from.target()));
  for (const auto& field : from) {
    request.headers.emplace_back(std::string(View(field.name_string())),
                                 std::string(View(field.value())));
  }
  return request;
}

HttpRouteOrRefusal FindRoute(const HttpRequest& request, const std::vector<HttpRoute>& routes) {
  const absl::string_view path = PathOf(request.target);
  absl::string_view method = request.method;
  if (method == "HEAD") method = "GET";
  std::string allowed, paths;
  for (const HttpRoute& route : routes) {
    absl::string_view prefix = route.path;
    const bool matches = absl::ConsumeSuffix(&prefix, "*")
                             ? absl::StartsWith(path, prefix) && path.size() > prefix.size()
                             : path == prefix;
    if (matches && route.method == method) return {&route, 0, "", ""};
    absl::StrAppend(&paths, paths.empty() ? "" : ", ", route.path);
    if (!matches) continue;
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", route.method,
                    route.method == "GET" ? ", HEAD" : "");
  }
  if (allowed.empty()) {
    return {nullptr, 404, absl::StrCat("no such path; expected one of ", paths, "\n"), ""};
  }
  return {nullptr, 405, absl::StrCat("method not allowed; expected ", allowed, "\n"),
          absl::StrCat("Allow: ", allowed, "\r\n")};
}

std::pair<int, std::string> MalformedRequest(boost::system::error_code error,
                                             size_t max_body_bytes) {
  if (error == http::error::header_limit) {
    return {431,
            absl::StrCat("request head too large: the limit is ", kMaxHttpHeadBytes, " bytes\n")};
  }
  if (error == http::error::body_limit || error == http::error::buffer_overflow) {
    return {413, absl::StrCat("request body too large: the limit is ", max_body_bytes, " bytes\n")};
  }
  return {400, absl::StrCat("malformed request: ", error.message(), "\n")};
}

namespace {

std::string HeadOf(const HttpResponse& response, absl::string_view framing, bool keep_alive) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(response.status));
  const std::string date =
      absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", absl::Now(), absl::UTCTimeZone());
  return absl::StrCat("HTTP/1.1 ", response.status, " ", View(reason), "\r\nDate: ", date,
                      "\r\nContent-Type: ", response.content_type, "\r\n", framing,
                      response.headers, "Connection: ", keep_alive ? "keep-alive" : "close",
                      "\r\n\r\n");
}

}  // namespace

std::string ResponseHead(const HttpResponse& response, bool keep_alive) {
  const size_t body_bytes = response.body == nullptr ? 0 : response.body->size();
  // A 304 response may omit Content-Length. If present, it would have to be the length of the 200
  // response.
  const std::string length =
      response.status == 304 ? "" : absl::StrCat("Content-Length: ", body_bytes, "\r\n");
  return HeadOf(response, length, keep_alive);
}

std::string StreamHead(const HttpResponse& response, bool chunked, bool keep_alive) {
  return HeadOf(response, chunked ? "Transfer-Encoding: chunked\r\n" : "", keep_alive);
}

}  // namespace quintet
