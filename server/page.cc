#include "server/page.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "models/checkpoint/sha256.h"
#include "server/api_errors.h"

namespace quintet {
namespace {

constexpr char kIndex[] = "index.html";
constexpr absl::string_view kFolder = "/page/";

// Trusted types let a browser refuse every assignment of text as HTML. The only image is an empty
// data URL, which keeps browsers from requesting /favicon.ico.
constexpr char kHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-cache\r\n";

const char* ContentTypeOf(absl::string_view name) {
  if (absl::EndsWith(name, ".html")) return "text/html; charset=utf-8";
  if (absl::EndsWith(name, ".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

// Whether the header If-None-Match names `tag`.
bool Names(absl::string_view header, absl::string_view tag) {
  for (absl::string_view one : absl::StrSplit(header, ',')) {
    one = absl::StripAsciiWhitespace(one);
    absl::ConsumePrefix(&one, "W/");
    if (one == tag || one == "*") return true;
  }
  return false;
}

struct Served {
  HttpResponse response;
  std::string tag;  // with its quotes
};

std::map<std::string, Served, std::less<>> MakeResponses() {
  std::map<std::string, Served, std::less<>> files;
  for (const PageFile& file : PageFiles()) {
    Sha256 hash;
    hash.Update(file.content.data(), file.content.size());
    Served served;
    served.tag = absl::StrCat("\"", hash.Finish().substr(0, 32), "\"");
    served.response.content_type = ContentTypeOf(file.name);
    served.response.body = std::make_shared<const std::string>(file.content);
    served.response.headers = absl::StrCat(kHeaders, "ETag: ", served.tag, "\r\n");
    files.emplace(file.name, std::move(served));
  }
  return files;
}

HttpResponse Respond(const HttpRequest& request) {
  static const auto* const files = new std::map<std::string, Served, std::less<>>(MakeResponses());
  absl::string_view name = PathOf(request.target);
  if (name == "/") {
    name = kIndex;
  } else if (!absl::ConsumePrefix(&name, kFolder) || name == kIndex) {
    name = "";
  }
  const auto found = files->find(name);
  if (found == files->end()) return RefusalResponse(404, "no such file of the page");
  HttpResponse response = found->second.response;
  if (Names(request.Header("if-none-match").value_or(""), found->second.tag)) {
    response.status = 304;
    response.body = nullptr;
  }
  return response;
}

}  // namespace

bool IsPagePath(absl::string_view path) {
  return path == "/" || (absl::StartsWith(path, kFolder) && path.size() > kFolder.size());
}

std::vector<HttpRoute> PageRoutes() {
  return {{"GET", "/", HttpRoute::Thread::kIo, Respond},
          {"GET", absl::StrCat(kFolder, "*"), HttpRoute::Thread::kIo, Respond}};
}

}  // namespace quintet
