// Tests of the HTTP API of a running server: clients that stop reading or disconnect at any moment,
// and the shutdown of the server.
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"
#include "tests/server/stub_model.h"

namespace quintet {
namespace {

std::string Post(const std::string& path, const std::string& body) {
  return RequestText(path, "POST",
                     absl::StrCat("Content-Type: application/json\r\nContent-Length: ", body.size(),
                                  "\r\n")) +
         body;
}

// A server with a stub model and the HTTP API.
class ApiServer {
 public:
  explicit ApiServer(const std::shared_ptr<StubControl>& control) : port_(FreePort()) {
    server_ = std::make_unique<RunningServer>([&](ServerOptions* options) {
      UseStub(&options->models[0], control);
      options->http_api_listen = absl::StrCat("127.0.0.1:", port_);
      options->models[0].decoding.max_new_tokens = 200'000;
      options->client_timeouts.write_us = 600'000'000;
      // The 8 GiB of KV cache only count in the memory plan: the stub model allocates nothing.
      options->models[0].limits.cache_bytes = int64_t{8} << 30;
    });
  }
  int port() const { return port_; }
  RunningServer& server() { return *server_; }
  bool AtRest() const {
    return server_->Metric("quintet_open_calls") == 0 &&
           server_->Metric("quintet_requests_running") == 0 &&
           server_->Metric("quintet_requests_waiting") == 0 &&
           server_->Metric("quintet_queue_tokens") == 0 &&
           server_->Metric("quintet_kv_cache_usage_ratio") == 0 &&
           server_->Metric("quintet_requests_accepted_total") ==
               server_->Metric("quintet_requests_finished_total");
  }
  bool Answers() const {
    HttpClient client(port_);
    client.Send(Post("/v1/completions", R"({"prompt":"a","max_tokens":3})"));
    return client.Read().status == 200;
  }

 private:
  const int port_;
  std::unique_ptr<RunningServer> server_;
};

TEST_CASE("A stream over HTTP whose client stops reading is cut off at 1 MiB", "[http_api]") {
  ApiServer server(std::make_shared<StubControl>());
  HttpClient stalled(server.port(), /*receive_buffer_bytes=*/4096);
  // The 16 sequences produce several MB of chunks.
  stalled.Send(Post("/v1/completions",
                    R"({"prompt":"a","ignore_eos":true,"max_tokens":60000,"temperature":1,)"
                    R"("n":16,"stream":true,"return_token_ids":true})"));
  for (int i = 0; i < 5; ++i) CHECK(server.Answers());
  CHECK(Eventually([&] {
    return server.server().Metric(
               "quintet_requests_finished_total{engine=\"0\",model_name=\"g2p\",reason="
               "\"cancelled\"}") == 1;
  }));
  CHECK_FALSE(absl::StrContains(stalled.ReadToEnd(), "[DONE]"));
  CHECK(Eventually([&] { return server.AtRest(); }));
  CHECK(server.Answers());
}

TEST_CASE("Clients of the HTTP API that go away at any moment leave nothing behind", "[http_api]") {
  auto control = std::make_shared<StubControl>();
  control->step_us = 100;
  ApiServer server(control);
  const std::vector<std::string> requests = {
      Post("/v1/completions", R"({"prompt":"a","ignore_eos":true,"max_tokens":300})"),
      Post("/v1/completions",
           R"({"prompt":["a","b","c"],"ignore_eos":true,"max_tokens":100,"stream":true})"),
      Post("/v1/completions", R"({"prompt":["a",[999999],"c"],"max_tokens":100,"stream":true})"),
      Post("/v1/completions", R"({"prompt":["a","b"],"model":"none"})"),
      Post("/v1/embeddings", R"({"input":["a","b","c"]})"),
      Post("/generate_stream", R"({"inputs":"a","parameters":{"ignore_eos":true}})"),
      Post("/tokenize", R"({"inputs":["a","b"]})"),
      Post("/v1/completions", "{"),
      RequestText("/v1/models")};
  std::atomic<int> answered{0};
  const auto run = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 100; ++i) {
      HttpClient client(server.port());
      client.Send(requests[random() % requests.size()] + requests[random() % requests.size()]);
      if (random() % 4 == 0) client.EndRequests();
      if (random() % 2 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
      } else {
        answered += client.Read().status > 0;
      }
    }
  };
  std::vector<std::thread> clients;
  for (unsigned seed = 0; seed < 6; ++seed) clients.emplace_back(run, seed);
  for (std::thread& client : clients) client.join();
  CHECK(answered > 50);
  CHECK(Eventually([&] { return server.AtRest(); }));
  CHECK(Eventually([&] { return server.server().Metric("quintet_http_api_connections") == 0; }));
  CHECK(server.Answers());
}

TEST_CASE("A server stops while calls of the HTTP API run", "[http_api]") {
  auto control = std::make_shared<StubControl>();
  control->step_us = 1000;
  ApiServer server(control);
  std::vector<HttpClient> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back(server.port());
    clients.back().Send(
        Post("/v1/completions",
             absl::StrCat(R"({"prompt":["a","b"],"ignore_eos":true,"max_tokens":20000,"stream":)",
                          i % 2 == 0 ? "true" : "false", "}")));
  }
  CHECK(Eventually([&] { return server.server().Metric("quintet_requests_running") > 1; }));
  server.server().Terminate();
  server.server().Hurry();
  CHECK(server.server().Stop() == 0);
  for (HttpClient& client : clients) CHECK(client.Ends());
}

}  // namespace
}  // namespace quintet
