// Tests of the start, the drain and the shutdown of a server.
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/running_server.h"
#include "tests/server/stub_model.h"

namespace quintet {
namespace {

ServeOutcome ServeOnce(const ServerOptions& options) {
  ServerSignals signals;
  signals.terminate = true;  // ends the server if it starts unexpectedly
  return Serve(options, &signals);
}

TEST_CASE("A second server on the same port is an error", "[lifecycle]") {
  RunningServer server;
  ServerOptions options = TestOptions();
  options.listen = server.options().listen;
  ServeOutcome outcome = ServeOnce(options);
  CHECK(outcome.exit_code == 2);
  CHECK(absl::StartsWith(outcome.status.message(), "--listen: "));
  options = TestOptions();
  options.http_listen = server.options().http_listen;
  outcome = ServeOnce(options);
  CHECK(outcome.exit_code == 2);
  CHECK(absl::StartsWith(outcome.status.message(), "--http-listen: "));
  CHECK(Generate(server.stub(), Word("wagner")).ok());
}

TEST_CASE("Without TLS a server listens only on loopback, unless --allow-plaintext is given",
          "[lifecycle]") {
  ServerOptions options = TestOptions();
  options.listen = absl::StrCat("0.0.0.0:", FreePort());
  const ServeOutcome outcome = ServeOnce(options);
  CHECK(outcome.exit_code == 2);
  CHECK(absl::StrContains(outcome.status.message(), "--allow-plaintext"));
  RunningServer server([&](ServerOptions* o) {
    o->listen = options.listen;
    o->allow_plaintext = true;
  });
  CHECK(Generate(server.stub(), Word("wagner")).ok());
}

TEST_CASE("Two models with the same name are an error", "[lifecycle]") {
  ServerOptions options = TestOptions();
  options.models.push_back(options.models[0]);
  CHECK(ServeOnce(options).exit_code == 2);
}

TEST_CASE("A model that cannot be loaded ends the server with exit code 3", "[lifecycle]") {
  RunningServer unrelated;
  ServerOptions options = TestOptions();
  options.models[0].directory = "/nonexistent";
  ServerSignals signals;
  const ServeOutcome outcome = Serve(options, &signals);
  CHECK(outcome.exit_code == 3);
  CHECK_FALSE(outcome.status.ok());
}

// A GenerateStream call for 4,000 tokens whose first chunk has arrived.
struct RunningStream {
  explicit RunningStream(RunningServer& server)
      : reader(server.stub().GenerateStream(&context, Endless(4000))) {
    REQUIRE(Read());
  }
  bool Read() { return reader->Read(&message); }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateStreamResponse>> reader;
  v1::GenerateStreamResponse message;
};

TEST_CASE("A drain first reports not serving, then rejects calls while running ones finish",
          "[lifecycle]") {
  auto control = std::make_shared<StubControl>();
  control->step_us = 1000;
  RunningServer server([&](ServerOptions* options) {
    UseStub(&options->models[0], control);
    options->drain_delay_us = 1'500'000;
  });
  RunningStream stream(server);
  server.Terminate();
  CHECK(Eventually([&] { return server.Get("/readyz") == "unavailable\n"; }));
  CHECK(server.Get("/healthz") == "ok\n");
  CHECK(Generate(server.stub(), Endless(1)).ok());  // balancers still route calls here
  grpc::Status refused;
  CHECK(Eventually([&] {
    refused = Generate(server.stub(), Endless(1));
    return !refused.ok();
  }));
  CHECK(refused.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(ReasonOfStatus(refused) == "NOT_READY");
  google::rpc::RetryInfo retry;
  CHECK(DetailOf(refused, &retry));
  CHECK(server.Metric("quintet_ready") == 0);
  control->step_us = 0;
  bool complete = false;
  while (stream.Read()) complete = complete || stream.message.has_complete();
  CHECK(complete);
  CHECK(stream.reader->Finish().ok());
  CHECK(server.Stop() == 0);
}

TEST_CASE("Under load every call of a draining server ends OK or UNAVAILABLE", "[lifecycle]") {
  RunningServer server;
  std::atomic<int> answered{0}, refused{0}, other{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      for (int j = 0; j < 100'000; ++j) {
        const grpc::Status status =
            Generate(server.stub(), Word(absl::StrCat("word", i, "x", j), 1 + i % 3));
        if (status.ok()) {
          ++answered;
          continue;
        }
        ++(status.error_code() == grpc::StatusCode::UNAVAILABLE ? refused : other);
        return;
      }
    });
  }
  CHECK(Eventually([&] { return answered > 100; }));
  CHECK(server.Stop() == 0);
  for (std::thread& client : clients) client.join();
  CHECK(refused == 16);
  CHECK(other == 0);
}

TEST_CASE("Calls that run longer than the drain timeout are cancelled", "[lifecycle]") {
  auto control = std::make_shared<StubControl>();
  control->step_us = 100'000;
  RunningServer server([&](ServerOptions* options) {
    UseStub(&options->models[0], control);
    options->drain_timeout_us = 200'000;
  });
  RunningStream stream(server);
  CHECK(server.Stop() == 0);
  while (stream.Read()) {
  }
  CHECK_FALSE(stream.reader->Finish().ok());
}

TEST_CASE("A second signal during the drain cancels open calls", "[lifecycle]") {
  auto control = std::make_shared<StubControl>();
  control->step_us = 20'000;
  RunningServer server([&](ServerOptions* options) {
    UseStub(&options->models[0], control);
    options->drain_delay_us = options->drain_timeout_us = int64_t{3600} * 1'000'000;
  });
  RunningStream stream(server);
  server.Terminate();
  CHECK(Eventually([&] { return server.Get("/readyz") == "unavailable\n"; }));
  CHECK(stream.Read());  // the stream is still served
  server.Hurry();
  CHECK(server.Stop() == 0);
  while (stream.Read()) {
  }
  CHECK_FALSE(stream.reader->Finish().ok());
}

// Hidden test cases (tag [.child]) run in child processes (ChildServer), which the visible test
// cases start.
ServerSignals child_signals;

[[noreturn]] void ServeAsChild(const ServerOptions& options) {
  std::signal(SIGTERM, [](int) { child_signals.terminate = true; });
  std::_Exit(Serve(options, &child_signals).exit_code);
}

TEST_CASE("child that stalls", "[.child]") {
  ServerOptions options = ChildOptions();
  auto control = std::make_shared<StubControl>();
  control->step_us = 1000;
  control->stall_at = 50;
  UseStub(&options.models[0], control);
  options.models[0].limits.max_running = 1;
  options.stall_timeout_us = 3'000'000;
  ServeAsChild(options);
}

TEST_CASE("A stalled engine fails its calls and ends the process with code 70", "[lifecycle]") {
  ChildServer child("child that stalls");
  REQUIRE(Eventually([&] { return HttpGet(child.options().http_listen, "/readyz") == "ok\n"; }));
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(child.options().listen, grpc::InsecureChannelCredentials()));
  grpc::Status queued;
  grpc::ClientContext context;
  auto reader = stub->GenerateStream(&context, Endless(4000));
  v1::GenerateStreamResponse message;
  REQUIRE(reader->Read(&message));
  std::thread other([&] { queued = Generate(*stub, Endless(1)); });
  while (reader->Read(&message)) {
  }
  const grpc::Status running = reader->Finish();
  other.join();
  CHECK(running.error_code() == grpc::StatusCode::INTERNAL);
  CHECK(ReasonOfStatus(running) == "ENGINE_FAULT");
  google::rpc::RetryInfo retry;
  CHECK_FALSE(DetailOf(running, &retry));  // no retry: the request may have caused the stall
  CHECK(queued.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(DetailOf(queued, &retry));
  CHECK(child.Wait() == 70);
}

TEST_CASE("child that serves on", "[.child]") {
  ServerOptions options = ChildOptions();
  auto control = std::make_shared<StubControl>();
  control->step_us = 500'000;  // the process is suspended during a step
  UseStub(&options.models[0], control);
  options.models[0].limits.max_running = 1;
  options.stall_timeout_us = 2'000'000;
  options.default_timeout_us = 2'000'000;
  ServeAsChild(options);
}

TEST_CASE("A process suspended for longer than the stall timeout continues to serve",
          "[lifecycle]") {
  ChildServer child("child that serves on");
  REQUIRE(Eventually([&] { return HttpGet(child.options().http_listen, "/readyz") == "ok\n"; }));
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(child.options().listen, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  auto reader = stub->GenerateStream(&context, Endless(8));
  v1::GenerateStreamResponse message;
  REQUIRE(reader->Read(&message));
  // A second call waits in the queue behind the stream. Its default deadline passes while the
  // process is suspended.
  grpc::Status queued;
  std::thread other([&] { queued = Generate(*stub, Endless(1)); });
  CHECK(Eventually([&] {
    return absl::StrContains(HttpGet(child.options().http_listen, "/metrics"),
                             "quintet_requests_waiting{engine=\"0\",model_name=\"g2p\"} 1");
  }));
  for (int i = 0; i < 2; ++i) {
    child.Signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    child.Signal(SIGCONT);
    REQUIRE(reader->Read(&message));
    CHECK(HttpGet(child.options().http_listen, "/healthz") == "ok\n");
  }
  other.join();
  CHECK(queued.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  CHECK(ReasonOfStatus(queued) == "QUEUED");
  bool complete = false;
  while (reader->Read(&message)) complete = complete || message.has_complete();
  CHECK(complete);
  CHECK(reader->Finish().ok());
  grpc::ClientContext next;
  next.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  v1::GenerateResponse response;
  CHECK(stub->Generate(&next, Endless(1), &response).ok());
  child.Signal(SIGTERM);
  CHECK(child.Wait() == 0);
}

TEST_CASE("child that loads forever", "[.child]") {
  ServerOptions options = ChildOptions();
  auto control = std::make_shared<StubControl>();
  control->load_us = 3'600'000'000;
  UseStub(&options.models[0], control);
  ServeAsChild(options);
}

TEST_CASE("While loading a server is live, not ready, and stops on SIGTERM", "[lifecycle]") {
  ChildServer child("child that loads forever");
  const std::string& http = child.options().http_listen;
  REQUIRE(Eventually([&] { return HttpGet(http, "/healthz") == "ok\n"; }));
  CHECK(HttpGet(http, "/readyz") == "unavailable\n");
  const auto stub = v1::Inference::NewStub(
      grpc::CreateChannel(child.options().listen, grpc::InsecureChannelCredentials()));
  grpc::Status refused;
  CHECK(Eventually([&] {  // the port may open a moment after the probes
    refused = Generate(*stub, Word("wagner"));
    return ReasonOfStatus(refused) == "NOT_READY";
  }));
  CHECK(refused.error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK(absl::StrContains(HttpGet(http, "/metrics"),
                          "requests_rejected_total{engine=\"0\",model_name=\"g2p\",reason="
                          "\"NOT_READY\"} "));
  child.Signal(SIGTERM);
  CHECK(child.Wait() == 0);
}

}  // namespace
}  // namespace quintet
