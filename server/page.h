// The page of the HTTP API (--http-api-page): the served models and a playground for them, in a
// browser. It is served at "/", its parts below "/page/". The files in server/page/ are part of the
// program. They hold no data of the server, so they need no API key: in its requests to the API the
// page sends the key that its user enters.
#pragma once

#include <span>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/http_server.h"

namespace quintet {

struct PageFile {
  const char* name;  // "index.html"
  absl::string_view content;
};

// Returns the files of server/page/. server/page/embed.cmake generates this function.
std::span<const PageFile> PageFiles();

// Whether a route of PageRoutes matches GET `path`. Its response may be a file or status 404.
bool IsPagePath(absl::string_view path);

// The routes of the page. Their responses have an ETag and headers that forbid the page to load or
// contact anything but this server, to run inline scripts, and to be shown in a frame.
std::vector<HttpRoute> PageRoutes();

}  // namespace quintet
