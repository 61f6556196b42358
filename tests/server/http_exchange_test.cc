// Tests handlers of the HTTP server that answer later, from other threads: complete responses,
// streams, clients that disconnect, and the shutdown of the server.
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/http_server.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/http_client.h"

namespace quintet {
namespace {

using std::chrono::milliseconds;

// The HttpHandler of one request. It records which of its functions the server has called.
struct Recorder final : public HttpHandler {
  explicit Recorder(std::shared_ptr<HttpExchange> its_exchange)
      : exchange(std::move(its_exchange)) {}
  void OnDrained() override { ++drained; }
  void OnDone(bool was_sent) override {
    sent = was_sent;
    ++done;
  }
  const std::shared_ptr<HttpExchange> exchange;
  std::atomic<int> drained{0}, done{0};
  std::atomic<bool> sent{false};
};

// A server with the route POST /later, whose exchanges the test answers, and GET /prefix/*.
class LaterServer {
 public:
  explicit LaterServer(HttpServer::Options options = HttpServer::Options()) {
    options.listen = "127.0.0.1:0";
    std::vector<HttpRoute> routes(2);
    routes[0].method = "POST";
    routes[0].path = "/later";
    routes[0].start = [this](std::shared_ptr<HttpExchange> exchange) {
      auto made = std::make_shared<Recorder>(std::move(exchange));
      std::lock_guard<std::mutex> lock(mutex_);
      started_.push_back(made);
      return made;
    };
    routes[1].method = "GET";
    routes[1].path = "/prefix/*";
    routes[1].handler = [](const HttpRequest& request) { return PlainText(200, request.target); };
    auto server = HttpServer::Start(std::move(options), std::move(routes));
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }

  // Waits for exchange number `index`.
  std::shared_ptr<Recorder> Get(size_t index) {
    std::shared_ptr<Recorder> found;
    REQUIRE(Eventually([&] {
      std::lock_guard<std::mutex> lock(mutex_);
      if (started_.size() > index) found = started_[index];
      return found != nullptr;
    }));
    return found;
  }
  int port() const { return server_->port(); }
  HttpServer& server() { return *server_; }
  void Stop() { server_.reset(); }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Recorder>> started_;
  std::unique_ptr<HttpServer> server_;
};

std::string Post(const std::string& body) {
  return RequestText("/later", "POST", absl::StrCat("Content-Length: ", body.size(), "\r\n")) +
         body;
}

TEST_CASE("http exchange: a handler answers later, and pipelined requests wait", "[http]") {
  LaterServer server;
  HttpClient client(server.port());
  client.Send(Post("one") + Post("two"));
  const auto first = server.Get(0);
  CHECK(first->exchange->request().body == "one");
  CHECK(first->exchange->request().method == "POST");
  CHECK(first->exchange->request().Header("content-LENGTH") == "3");
  CHECK_FALSE(first->exchange->request().Header("absent").has_value());
  CHECK(server.server().busy() == 1);
  first->exchange->Respond(PlainText(200, "answer one"));
  CHECK(client.Read().body == "answer one");
  CHECK(Eventually([&] { return first->done == 1; }));
  CHECK(first->sent);
  first->exchange->Respond(PlainText(500, "again"));  // does nothing
  const auto second = server.Get(1);
  CHECK(second->exchange->connection() == first->exchange->connection());
  second->exchange->Respond(PlainText(429, std::string(100'000, 'x')));
  const HttpAnswer answer = client.Read();
  CHECK(answer.status == 429);
  CHECK(answer.body.size() == 100'000);
  CHECK(Eventually([&] { return server.server().busy() == 0; }));
}

TEST_CASE("http exchange: a stream is chunked, or ends with the connection in HTTP/1.0", "[http]") {
  LaterServer server;
  for (const bool chunked : {true, false}) {
    HttpClient client(server.port());
    std::string request = Post("body");
    if (!chunked) request.replace(request.find("HTTP/1.1"), 8, "HTTP/1.0");
    client.Send(request);
    const auto handler = server.Get(chunked ? 0 : 1);
    HttpResponse head;
    head.content_type = "text/event-stream";
    handler->exchange->Begin(head);
    for (int i = 0; i < 3; ++i) {
      const int drained = handler->drained;
      handler->exchange->Write(absl::StrCat("part ", i, "\n"));
      CHECK(Eventually([&] { return handler->drained > drained; }));
    }
    handler->exchange->End();
    CHECK(Eventually([&] { return handler->done == 1; }));
    CHECK(handler->sent);
    if (chunked) client.Send(RequestText("/prefix/x", "GET", "Connection: close\r\n"));
    const std::string all = client.ReadToEnd();
    CHECK(absl::StrContains(all, "Content-Type: text/event-stream\r\n"));
    if (chunked) {
      CHECK(absl::StrContains(all, "Transfer-Encoding: chunked\r\n"));
      CHECK(absl::StrContains(all, "7\r\npart 0\n\r\n"));
      CHECK(absl::StrContains(all, "\r\n0\r\n\r\nHTTP/1.1 200 OK"));
    } else {
      CHECK_FALSE(absl::StrContains(all, "chunked"));
      CHECK(absl::EndsWith(all, "\r\n\r\npart 0\npart 1\npart 2\n"));
    }
  }
}

TEST_CASE("http exchange: the handler hears once that its client has gone", "[http]") {
  LaterServer server;
  for (size_t i = 0; i < 20; ++i) {
    auto client = std::make_unique<HttpClient>(server.port());
    client->Send(Post("body"));
    const auto handler = server.Get(i);
    if (i % 2 == 1) handler->exchange->Begin(HttpResponse());
    if (i % 4 == 2) client->EndRequests();
    client.reset();
    CHECK(Eventually([&] { return handler->done == 1; }));
    CHECK_FALSE(handler->sent);
    handler->exchange->Write("more");  // does nothing
    handler->exchange->End();
    handler->exchange->Abort();
  }
  CHECK(Eventually([&] { return server.server().connections() == 0; }));
}

TEST_CASE("http exchange: Abort closes the connection", "[http]") {
  LaterServer server;
  HttpClient client(server.port());
  client.Send(Post("body"));
  const auto handler = server.Get(0);
  handler->exchange->Begin(HttpResponse());
  handler->exchange->Abort();
  CHECK(client.Ends());
  CHECK(Eventually([&] { return handler->done == 1; }));
  CHECK_FALSE(handler->sent);
}

constexpr int kSmallBuffer = 4096;

// Sends the server's first request and begins its response, a stream. The first 8 MiB do not fit
// into the socket buffers if the client's receive buffer has kSmallBuffer bytes.
std::shared_ptr<Recorder> StartLargeStream(LaterServer* server, HttpClient* client) {
  client->Send(Post("body"));
  auto handler = server->Get(0);
  handler->exchange->Begin(HttpResponse());
  handler->exchange->Write(std::string(8 << 20, 'x'));
  return handler;
}

TEST_CASE("http exchange: Abort ends a write that the client does not read", "[http]") {
  LaterServer server({.write_timeout = milliseconds(600'000)});
  HttpClient client(server.port(), kSmallBuffer);
  const auto handler = StartLargeStream(&server, &client);
  CHECK(client.Read(/*without_body=*/true).status == 200);  // the write is in progress
  handler->exchange->Write("more");
  // Let the I/O thread learn of "more", which it can write only after the first 8 MiB.
  std::this_thread::sleep_for(milliseconds(50));
  handler->exchange->Abort();
  CHECK(Eventually([&] { return handler->done == 1; }));
  CHECK_FALSE(handler->sent);
}

TEST_CASE("http exchange: a stream whose client does not read ends at its time limit", "[http]") {
  LaterServer server({.write_timeout = milliseconds(300)});
  HttpClient client(server.port(), kSmallBuffer);
  const auto handler = StartLargeStream(&server, &client);
  CHECK(Eventually([&] { return handler->done == 1; }));
  CHECK_FALSE(handler->sent);
  CHECK(handler->drained <= 1);  // the head may have been sent alone
}

TEST_CASE("http exchange: many threads answer many connections", "[http]") {
  LaterServer server;
  constexpr size_t kClients = 40, kParts = 50;
  std::vector<HttpClient> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back(server.port());
    clients.back().Send(Post(absl::StrCat(i)));
  }
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kClients; ++i) {
    threads.emplace_back([handler = server.Get(i)] {
      const std::string body = handler->exchange->request().body;
      handler->exchange->Begin(HttpResponse());
      for (size_t part = 0; part < kParts; ++part) handler->exchange->Write(body + ";");
      handler->exchange->End();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kClients; ++i) {
    clients[i].Send(RequestText("/prefix/x", "GET", "Connection: close\r\n"));
    const std::string all = clients[i].ReadToEnd();
    size_t found = 0;
    for (size_t at = 0; (at = all.find(absl::StrCat(i, ";"), at)) != std::string::npos; ++at) {
      ++found;
    }
    CHECK(found >= kParts);
  }
}

TEST_CASE("http exchange: a server that stops ends its exchanges", "[http]") {
  LaterServer server;
  std::vector<HttpClient> clients;
  std::vector<std::shared_ptr<Recorder>> handlers;
  for (size_t i = 0; i < 5; ++i) {
    clients.emplace_back(server.port());
    clients.back().Send(Post("body"));
    handlers.push_back(server.Get(i));
  }
  handlers[0]->exchange->Begin(HttpResponse());
  server.Stop();
  for (const auto& handler : handlers) {
    CHECK(handler->done == 1);
    CHECK_FALSE(handler->sent);
    handler->exchange->Respond(PlainText(200, "late"));  // does nothing
  }
}

TEST_CASE("http exchange: a drained server closes each connection after its response", "[http]") {
  LaterServer server;
  HttpClient client(server.port());
  client.Send(RequestText("/prefix/a"));
  CHECK(absl::StrContains(client.Read().head, "Connection: keep-alive"));
  server.server().Drain();
  client.Send(RequestText("/prefix/a"));
  CHECK(absl::StrContains(client.Read().head, "Connection: close"));
  CHECK(client.Ends());
}

TEST_CASE("http exchange: requests are checked by their head, before their body", "[http]") {
  HttpServer::Options options;
  options.check = [](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.Header("x-key") == "right") return std::nullopt;
    return PlainText(401, "no key\n");
  };
  options.refusal = [](int status, const std::string& text) {
    return PlainText(status, "refused: " + text);
  };
  LaterServer server(options);
  HttpClient client(server.port());
  // The body is never sent.
  client.Send(RequestText("/later", "POST", "Content-Length: 1000\r\nExpect: 100-continue\r\n"));
  CHECK(client.Read().status == 401);
  CHECK(client.Ends());
  CHECK(Fetch(server.port(), "/none").status == 401);
  HttpClient keyed(server.port());
  keyed.Send(RequestText("/none", "GET", "X-Key: right\r\n"));
  CHECK(absl::StartsWith(keyed.Read().body, "refused: no such path"));
}

TEST_CASE("http exchange: a path with a star matches longer paths only", "[http]") {
  LaterServer server;
  CHECK(Fetch(server.port(), "/prefix/a/b?c").body == "/prefix/a/b?c");
  CHECK(Fetch(server.port(), "/prefix/").status == 404);
  CHECK(Fetch(server.port(), "/prefix").status == 404);
  CHECK(Fetch(server.port(), "/prefix/a", "POST").status == 405);
}

TEST_CASE("http exchange: bodies that arrive slowly are bounded in sum", "[http]") {
  HttpServer::Options options;
  options.max_body_bytes = 1 << 20;
  options.max_received_bytes = 3 << 20;
  options.request_timeout = milliseconds(60'000);
  LaterServer server(options);
  const std::string most(1 << 20, 'b');
  const std::string head =
      RequestText("/later", "POST", absl::StrCat("Content-Length: ", most.size(), "\r\n"));
  std::vector<HttpClient> slow;
  for (int i = 0; i < 8; ++i) {
    slow.emplace_back(server.port());
    slow.back().Send(head + most.substr(1));
  }
  int ended = 0;
  for (HttpClient& client : slow) ended += client.Ends(2'000);
  CHECK(ended >= 5);
  CHECK(ended < 8);
}

}  // namespace
}  // namespace quintet
