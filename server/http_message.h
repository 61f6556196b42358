// Validates and routes parsed HTTP requests, and formats response headers. Stateless.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "boost/system/error_code.hpp"
#include "server/http_server.h"

namespace quintet {

using HttpParser = boost::beast::http::request_parser<boost::beast::http::string_body>;

// The next three functions need a parser that has read the complete request header.

// Returns a description of a header error that the parser itself does not detect, or null.
const char* HeaderError(const HttpParser& parser);
// Returns true if the client waits for "100 Continue" before it sends the body.
bool Expects100Continue(const HttpParser& parser);
// Returns the request without its body.
HttpRequest RequestOf(const HttpParser& parser);

// The route of a request. If there is none, `route` is null, and the other members are the error
// response (404 or 405).
struct HttpRouteOrRefusal {
  const HttpRoute* route = nullptr;
  int status = 0;
  std::string text, headers;
};
HttpRouteOrRefusal FindRoute(const HttpRequest& request, const std::vector<HttpRoute>& routes);

// Returns status (400, 413 or 431) and text of the response to a request that the parser rejected
// with `error`.
std::pair<int, std::string> MalformedRequest(boost::system::error_code error,
                                             size_t max_body_bytes);

// Format the status line and the header fields of a complete response and of a stream. A stream
// that is not chunked ends with the connection.
std::string ResponseHead(const HttpResponse& response, bool keep_alive);
std::string StreamHead(const HttpResponse& response, bool chunked, bool keep_alive);

}  // namespace quintet
