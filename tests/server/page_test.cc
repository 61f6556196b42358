#include "server/page.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/catch.h"

namespace quintet {
namespace {

HttpResponse Get(const std::string& target, const std::string& known_tag = "") {
  HttpRequest request;
  request.method = "GET";
  request.target = target;
  if (!known_tag.empty()) request.headers.emplace_back("if-none-match", known_tag);
  const std::vector<HttpRoute> routes = PageRoutes();
  return routes[target == "/" ? 0 : 1].handler(request);
}

TEST_CASE("Only GETs of the page and its parts need no key", "[page]") {
  for (const char* path : {"/", "/page/page.js", "/page/none", "/page//", "/page/../v1/models"}) {
    INFO(path);
    CHECK(IsPagePath(path));
  }
  for (const char* path : {"", "/page", "/page/", "/pages/x", "//", "/v1/models", "page/page.js"}) {
    INFO(path);
    CHECK_FALSE(IsPagePath(path));
  }
}

TEST_CASE("Every file of the page has content, a type and a tag of its own", "[page]") {
  std::vector<std::string> heads;
  for (const PageFile& file : PageFiles()) {
    const std::string name = file.name;
    INFO(name);
    CHECK(file.content.size() > 100);
    const HttpResponse response = Get(name == "index.html" ? "/" : "/page/" + name);
    REQUIRE(response.status == 200);
    CHECK(*response.body == file.content);
    CHECK(absl::StrContains(response.headers, "Content-Security-Policy: default-src 'none'; "));
    CHECK(std::find(heads.begin(), heads.end(), response.headers) == heads.end());
    heads.push_back(response.headers);
  }
  CHECK(heads.size() > 5);
  CHECK(Get("/").content_type == std::string("text/html; charset=utf-8"));
  CHECK(Get("/page/page.css").content_type == std::string("text/css; charset=utf-8"));
  CHECK(Get("/page/page.js").content_type == std::string("text/javascript; charset=utf-8"));
}

TEST_CASE("A client that has a file of the page is told so", "[page]") {
  const std::string headers = Get("/").headers;
  const size_t begin = headers.find("ETag: ") + 6;
  const std::string tag = headers.substr(begin, headers.find("\r\n", begin) - begin);
  for (const std::string& known : {tag, "W/" + tag, "\"a\" , " + tag, std::string("*")}) {
    INFO(known);
    const HttpResponse response = Get("/", known);
    CHECK(response.status == 304);
    CHECK(response.body == nullptr);
    CHECK(response.headers == headers);
  }
  for (const std::string& other : {std::string("\"a\""), tag.substr(1), "x" + tag}) {
    INFO(other);
    CHECK(Get("/", other).status == 200);
  }
}

TEST_CASE("Names that are not files of the page are not found", "[page]") {
  for (const char* path :
       {"/page/index.html", "/page/none.js", "/page/../page.js", "/page//page.js"}) {
    INFO(path);
    CHECK(Get(path).status == 404);
  }
}

}  // namespace
}  // namespace quintet
