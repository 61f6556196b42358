// Tests ApiCall, a request of the HTTP API, without sockets; each run fails a different allocation.
#include "server/api_call.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/failing_allocation.h"
#include "tests/server/stub_host.h"

namespace quintet {
namespace {

// Simulates the HTTP server for one request.
class FakeExchange final : public HttpExchange {
 public:
  explicit FakeExchange(HttpRequest request) : request_(std::move(request)) {}

  HttpRequest& request() override { return request_; }
  uint64_t connection() const override { return 1; }
  void Respond(HttpResponse response) override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++ends_;
    status_ = response.status;
    body_ = response.body;
  }
  void Begin(HttpResponse) override {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = 200;
  }
  void Write(absl::string_view bytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    events_.append(bytes.data(), bytes.size());
    written_ = true;
  }
  void End() override {
    std::lock_guard<std::mutex> lock(mutex_);
    ++ends_;
  }
  void Abort() override {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
  }

  // The functions below allocate nothing.
  bool TakeWritten() {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(written_, false);
  }
  bool ended() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return ends_ > 0 || aborted_;
  }
  bool aborted() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return aborted_;
  }
  int ends() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return ends_;
  }
  int status() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }
  std::string text() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return body_ == nullptr ? events_ : *body_;
  }

 private:
  HttpRequest request_;
  mutable std::mutex mutex_;
  int ends_ = 0, status_ = 0;
  bool aborted_ = false, written_ = false;
  std::shared_ptr<const std::string> body_;
  std::string events_;
};

struct Api {
  StubHost host;
  std::shared_ptr<ApiContext> context = std::make_shared<ApiContext>();

  Api() {
    context->calls = &host.context;
    context->methods = InferenceMethods(&host.context);
  }
};

const ApiRoute& RouteOf(const std::string& path) {
  for (const ApiRoute& route : ApiRoutes()) {
    if (path == route.path) return route;
  }
  FAIL("no route " << path);
  return ApiRoutes()[0];
}

struct Wanted {
  const char* path;
  const char* body;
  const char* answer;  // a part of the response
};

// Runs a request in which one allocation fails: the one after the first `skip` allocations of one
// thread. `where` selects the thread: 0 is this thread, which acts as the HTTP server's; 1, 2 and 3
// are a thread of the executor `preparation`, `completion` or `writer`. Returns whether an
// allocation failed.
bool RunWithFailure(Api* api, const Wanted& wanted, int where, int64_t skip) {
  HttpRequest request;
  request.method = RouteOf(wanted.path).method;
  request.target = wanted.path;
  request.body = wanted.body;
  const auto exchange = std::make_shared<FakeExchange>(std::move(request));
  const ApiRoute* const route = &RouteOf(wanted.path);
  const std::function<void(std::function<void()>)> posts[] = {
      [&](auto task) { api->host.preparation.Post(std::move(task)); },
      [&](auto task) { api->host.completion.Post(std::move(task)); },
      [&](auto task) { api->host.writer.Post(0, std::move(task)); }};
  const int64_t failed_before = FailedAllocations();
  if (where > 0) posts[where - 1]([skip] { FailAllocations(skip, 1); });
  if (where == 0) FailAllocations(skip, 1);
  std::shared_ptr<ApiCall> call;
  bool started = false;
  try {
    call = std::make_shared<ApiCall>(api->context, route, exchange);
    call->Start();
    started = true;
  } catch (const std::bad_alloc&) {
    // The HTTP server answers with 500.
  }
  const std::weak_ptr<ApiCall> watched = call;
  for (int turn = 0; started && !exchange->ended() && turn < 400'000; ++turn) {
    if (exchange->TakeWritten()) call->OnDrained();
    if (turn > 50) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (started) call->OnDone(/*sent=*/!exchange->aborted());
  call.reset();
  FailAllocations(0, 0);
  for (const auto& post : posts) post([] { FailAllocations(0, 0); });
  const bool failed = FailedAllocations() > failed_before;

  INFO(wanted.path << " thread " << where << " allocation " << skip << ": " << exchange->status()
                   << " " << exchange->text());
  if (started) {
    REQUIRE(exchange->ended());
    CHECK(exchange->ends() <= 1);
    if (!failed) CHECK_FALSE(exchange->aborted());
    if (!exchange->aborted()) {
      const bool out_of_memory = absl::StrContains(exchange->text(), "out of memory");
      CHECK((exchange->status() == 200 || exchange->status() == 429));
      CHECK((out_of_memory || absl::StrContains(exchange->text(), wanted.answer)));
      if (!failed) CHECK_FALSE(out_of_memory);
    }
  }
  REQUIRE(Eventually([&] { return watched.expired(); }));
  CHECK(Eventually([&] { return api->host.memory.used() == 0; }));
  return failed;
}

TEST_CASE("A failed allocation anywhere in a request of the HTTP API ends only that request",
          "[api]") {
  Api api;
  const Wanted requests[] = {
      {"/v1/completions", R"({"prompt":["a","b"],"max_tokens":3,"ignore_eos":true})",
       "\"choices\""},
      {"/v1/completions",
       R"({"prompt":"a","max_tokens":3,"ignore_eos":true,"stream":true,"return_token_ids":true})",
       "data: [DONE]"},
      {"/generate_stream", R"({"inputs":"a","parameters":{"max_new_tokens":3,"details":true}})",
       "\"generated_text\""},
      {"/v1/embeddings", R"({"input":["a","b"]})", "\"embedding\""},
      {"/similarity", R"({"inputs":{"source_sentence":"a","sentences":["b"]}})", "["},
      {"/generative_scoring", R"({"query":"a","items":["b"],"label_token_ids":[5]})", "\"score\""},
      {"/tokenize", R"({"inputs":"a"})", "\"id\""},
      {"/v1/models", "", "\"g2p\""},
  };
  for (const Wanted& wanted : requests) {
    for (const int where : {0, 1, 2, 3}) {
      // The loop ends when a run makes at most `skip` allocations, so that none fails. The number
      // of allocations varies with timing; hence three such runs in a row are required.
      int without = 0;
      for (int64_t skip = 0; without < 3; ++skip) {
        without = RunWithFailure(&api, wanted, where, skip) ? 0 : without + 1;
      }
    }
  }
}

// A thread translates the request and starts its RPCs while another one learns that the client has
// gone.
TEST_CASE("A request whose client leaves while it is translated releases its memory", "[api]") {
  Api api;
  ApiRoute route = RouteOf("/v1/completions");
  std::promise<void> translates, gone;
  route.translate = [&, translate = route.translate](const ApiRequest& request) {
    translates.set_value();
    gone.get_future().wait();
    return translate(request);
  };
  HttpRequest request;
  request.method = "POST";
  request.target = route.path;
  request.body = R"({"prompt":"a","max_tokens":3})";
  const auto exchange = std::make_shared<FakeExchange>(std::move(request));
  auto call = std::make_shared<ApiCall>(api.context, &route, exchange);
  call->Start();
  translates.get_future().wait();
  CHECK(api.host.memory.used() > 0);
  call->OnDone(/*sent=*/false);
  const std::weak_ptr<ApiCall> watched = call;
  call.reset();
  gone.set_value();
  REQUIRE(Eventually([&] { return watched.expired(); }));
  CHECK(api.host.memory.used() == 0);
  CHECK(exchange->ends() == 0);
}

}  // namespace
}  // namespace quintet
