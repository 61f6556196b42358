// A trace collector for tests: an HTTP server whose responses the test chooses.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "server/http_server.h"
#include "server/span_exporter.h"
#include "tests/catch.h"

namespace quintet {

class Collector {
 public:
  // `answer` returns the response to request number 0, 1, ... It runs on a thread of the server.
  using Answer = std::function<HttpResponse(size_t number)>;
  explicit Collector(
      Answer answer = [](size_t) { return PlainText(200, "{}"); },
      HttpServer::Options options = {}) {
    options.listen = "127.0.0.1:0";
    options.max_body_bytes = 16 << 20;
    std::vector<HttpRoute> routes;
    routes.push_back({"POST", "/v1/traces", HttpRoute::Thread::kWorker,
                      [this, answer = std::move(answer)](const HttpRequest& request) {
                        size_t number;
                        {
                          std::lock_guard<std::mutex> lock(mutex_);
                          number = requests_.size();
                          requests_.push_back(request);
                        }
                        return answer(number);
                      }});
    auto server = HttpServer::Start(std::move(options), std::move(routes));
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }

  HttpUrl url(bool tls = false) const {
    return {tls, "127.0.0.1", absl::StrCat(server_->port()), "/v1/traces"};
  }
  std::vector<HttpRequest> requests() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return requests_;
  }
  // The spans of all requests, which must not be compressed.
  std::vector<nlohmann::json> spans() const {
    std::vector<nlohmann::json> spans;
    for (const HttpRequest& request : requests()) {
      const nlohmann::json body = nlohmann::json::parse(request.body);
      for (const auto& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
        spans.push_back(span);
      }
    }
    return spans;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  std::unique_ptr<HttpServer> server_;  // last: its threads use the members above
};

// A collector that answers no request before Release or the end of its life.
class WaitingCollector {
 public:
  WaitingCollector()
      : collector_([released = release_.get_future().share()](size_t) {
          released.wait();
          return PlainText(200, "{}");
        }) {}
  ~WaitingCollector() { Release(); }
  void Release() {
    if (!std::exchange(released_, true)) release_.set_value();
  }

  HttpUrl url() const { return collector_.url(); }
  std::vector<HttpRequest> requests() const { return collector_.requests(); }

 private:
  std::promise<void> release_;
  bool released_ = false;
  Collector collector_;  // last: its threads wait for release_
};

}  // namespace quintet
