// Checks and routes parsed HTTP requests, and writes the heads of answers. Stateless.
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

// The next three need a parser that has read the head of a request.

// An error in the head that the parser accepts, or null.
const char* Flaw(const HttpParser& parser);
bool Expects100Continue(const HttpParser& parser);
// The request's route; null when there is none, with `refusal` as the answer.
const HttpRoute* FindRoute(const HttpParser& parser, const std::vector<HttpRoute>& routes,
                           HttpResponse* refusal);

// The answer to a request that the parser rejects.
HttpResponse Malformed(boost::system::error_code error, size_t max_body_bytes);

// Status line and headers.
std::string ResponseHead(const HttpResponse& response, bool keep_alive);

}  // namespace quintet
