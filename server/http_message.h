// Validates and routes parsed HTTP requests, and formats response headers. Stateless.
#pragma once

#include <cstddef>
#include <string>
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
// Returns the route of the request. If there is none, returns null and sets `refusal` to the error
// response (404 or 405).
const HttpRoute* FindRoute(const HttpParser& parser, const std::vector<HttpRoute>& routes,
                           HttpResponse* refusal);

// Returns the error response (400, 413 or 431) to a request that the parser rejected with `error`.
HttpResponse MalformedResponse(boost::system::error_code error, size_t max_body_bytes);

// Formats the status line and the header fields.
std::string ResponseHead(const HttpResponse& response, bool keep_alive);

}  // namespace quintet
