#include "server/http_endpoints.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "prometheus/gauge.h"
#include "tests/catch.h"
#include "tests/server/http_client.h"

namespace quintet {
namespace {

using std::chrono::milliseconds;

// HttpEndpoints of a metrics registry with one gauge. A test can make the collection of the metrics
// block or throw.
class TestEndpoints {
 public:
  explicit TestEndpoints(size_t help_bytes = 10) {
    prometheus::Family<prometheus::Gauge>& family = prometheus::BuildGauge()
                                                        .Name("answer")
                                                        .Help(std::string(help_bytes, 'h'))
                                                        .Register(registry_);
    gauge_ = &family.Add({});
    HttpEndpoints::Options options;
    options.listen = "127.0.0.1:0";
    options.collect = [this] {
      gauge_->Set(++collected);
      if (blocked) opened_.wait();
      if (throws) throw std::runtime_error("secret");
    };
    options.healthy = [this] { return healthy.load(); };
    options.ready = [this] { return ready.load(); };
    auto endpoints = HttpEndpoints::Start(std::move(options), &registry_);
    REQUIRE(endpoints.ok());
    endpoints_ = *std::move(endpoints);
  }
  ~TestEndpoints() { Unblock(); }

  int port() const { return endpoints_->port(); }
  void Unblock() {
    if (blocked.exchange(false)) gate_.set_value();
  }
  void WaitForCollection() const {
    while (collected == 0) std::this_thread::sleep_for(milliseconds(1));
  }

  std::atomic<bool> healthy{true}, ready{false}, throws{false}, blocked{false};
  std::atomic<int> collected{0};

 private:
  std::promise<void> gate_;
  std::shared_future<void> opened_ = gate_.get_future().share();
  prometheus::Registry registry_;
  prometheus::Gauge* gauge_ = nullptr;
  std::unique_ptr<HttpEndpoints> endpoints_;
};

TEST_CASE("endpoints: probes and metrics are served", "[http]") {
  TestEndpoints endpoints;
  const auto get = [&](const char* path) { return Fetch(endpoints.port(), path); };
  CHECK(get("/healthz").status == 200);
  CHECK(get("/healthz").body == "ok\n");
  CHECK(get("/readyz").status == 503);
  CHECK(get("/readyz").body == "unavailable\n");
  endpoints.ready = true;
  endpoints.healthy = false;
  CHECK(get("/healthz").status == 503);
  CHECK(get("/readyz").status == 200);
  const HttpAnswer metrics = get("/metrics");
  CHECK(metrics.status == 200);
  CHECK(metrics.body == "# HELP answer hhhhhhhhhh\n# TYPE answer gauge\nanswer 1\n");
  CHECK(absl::StrContains(metrics.head,
                          "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  CHECK(absl::StrContains(get("/metrics").body, "\nanswer 2\n"));
  for (const char* path : {"/healthz", "/readyz", "/metrics"}) {
    INFO(path);
    CHECK(Fetch(endpoints.port(), path, "HEAD").status == get(path).status);
    CHECK(Fetch(endpoints.port(), path, "POST").status == 405);
  }
  CHECK(get("/none").status == 404);
}

TEST_CASE("endpoints: probes are answered while metrics are collected", "[http]") {
  TestEndpoints endpoints;
  endpoints.blocked = true;
  HttpClient scraper(endpoints.port());
  scraper.Send(RequestText("/metrics"));
  endpoints.WaitForCollection();
  for (int i = 0; i < 20; ++i) CHECK(Fetch(endpoints.port(), "/healthz").status == 200);
  endpoints.Unblock();
  CHECK(scraper.Read().status == 200);
}

TEST_CASE("endpoints: scrapes that wait share one collection, which began after them", "[http]") {
  TestEndpoints endpoints;
  endpoints.blocked = true;
  std::vector<HttpClient> scrapers;
  for (int i = 0; i < 20; ++i) {
    scrapers.emplace_back(endpoints.port());
    scrapers.back().Send(RequestText("/metrics"));
    endpoints.WaitForCollection();                             // started by the first scraper
    CHECK(Fetch(endpoints.port(), "/healthz").status == 200);  // requests are read in this order
  }
  endpoints.Unblock();
  CHECK(absl::StrContains(scrapers[0].Read().body, "\nanswer 1\n"));
  for (size_t i = 1; i < scrapers.size(); ++i) {
    CHECK(absl::StrContains(scrapers[i].Read().body, "\nanswer 2\n"));
  }
  CHECK(absl::StrContains(Fetch(endpoints.port(), "/metrics").body, "\nanswer 3\n"));
}

TEST_CASE("endpoints: a scraper that does not read delays no other client", "[http]") {
  constexpr size_t kHelpBytes = 4 << 20;  // more than the kernel buffers of a connection
  TestEndpoints endpoints(kHelpBytes);
  std::vector<HttpClient> stalled;
  for (int i = 0; i < 12; ++i) {
    stalled.emplace_back(endpoints.port(), /*receive_buffer_bytes=*/4096);
    stalled.back().Send(RequestText("/metrics"));
  }
  for (int i = 0; i < 20; ++i) CHECK(Fetch(endpoints.port(), "/healthz").status == 200);
  const HttpAnswer metrics = Fetch(endpoints.port(), "/metrics");
  CHECK(metrics.status == 200);
  CHECK(metrics.body.size() > kHelpBytes);
}

TEST_CASE("endpoints: a failed collection is answered with 500", "[http]") {
  TestEndpoints endpoints;
  endpoints.throws = true;
  CHECK(Fetch(endpoints.port(), "/metrics").status == 500);
  CHECK(Fetch(endpoints.port(), "/healthz").status == 200);
  endpoints.throws = false;
  CHECK(absl::StrContains(Fetch(endpoints.port(), "/metrics").body, "\nanswer 2\n"));
}

// Probes /healthz `probes` times, each time on a new connection, as a kubelet does. Returns the
// response times in milliseconds, in ascending order.
std::vector<double> ProbeTimesMs(int port, int probes) {
  std::vector<double> times;
  for (int i = 0; i < probes; ++i) {
    const auto start = std::chrono::steady_clock::now();
    CHECK(Fetch(port, "/healthz").status == 200);
    times.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
            .count());
  }
  std::sort(times.begin(), times.end());
  return times;
}

// Keeps `count` slow connections open: replaces a connection as soon as the server closes it.
// With `drip` each connection sends ten bytes per second, otherwise nothing.
class SlowClients {
 public:
  SlowClients(int port, int count, bool drip) : clients_(static_cast<size_t>(count)) {
    thread_ = std::thread([this, port, drip] { Run(port, drip); });
    while (rounds_ < 2) std::this_thread::sleep_for(milliseconds(5));
  }
  ~SlowClients() {
    stop_ = true;
    thread_.join();
  }
  int closed() const { return closed_; }

 private:
  void Run(int port, bool drip) {
    for (; !stop_; ++rounds_) {
      for (std::optional<HttpClient>& client : clients_) {
        if (client.has_value() && (drip ? !client->Send("a") : client->Ends(0))) {
          ++closed_;
          client.reset();
        }
        if (client.has_value()) continue;
        client.emplace(port);
        if (drip) client->Send("GET /");
      }
      std::this_thread::sleep_for(milliseconds(100));
    }
  }

  std::vector<std::optional<HttpClient>> clients_;
  std::atomic<bool> stop_{false};
  std::atomic<int> rounds_{0}, closed_{0};
  std::thread thread_;
};

TEST_CASE("endpoints: probes are answered with 1,000 slow connections open", "[http]") {
  rlimit files{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit raised = {files.rlim_max, files.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &raised) == 0);
  {
    TestEndpoints endpoints;
    for (const bool drip : {false, true}) {
      SlowClients clients(endpoints.port(), 1000, drip);
      const std::vector<double> times = ProbeTimesMs(endpoints.port(), 200);
      CHECK(Fetch(endpoints.port(), "/metrics").status == 200);
      CHECK(clients.closed() > 0);  // closed to accept new connections
      WARN((drip ? "dripping" : "silent")
           << " clients: a probe takes " << times[times.size() / 2] << " ms at the median, "
           << times.back() << " ms at most");
    }
  }
  setrlimit(RLIMIT_NOFILE, &files);
}

}  // namespace
}  // namespace quintet
