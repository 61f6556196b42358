// Tests of the targets of the load generator, with the model deploy/models/g2p: a real server
// through each of its protocols, and an engine in this process.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/server/running_server.h"
#include "tests/server/stub_model.h"
#include "tests/tools/run_binary.h"
#include "tools/load/engine_target.h"
#include "tools/load/http_target.h"
#include "tools/load/server_target.h"

namespace quintet {
namespace {

LoadShape MixedShape() {
  LoadShape shape;
  shape.vocab = 128;
  shape.input_tokens = {2, 9};
  shape.output_tokens = {3, 12};
  shape.beam_share = 0.3;
  shape.num_beams = 2;
  return shape;
}

int64_t PlannedTokens(int requests) {
  LoadPlan plan(MixedShape());
  int64_t tokens = 0;
  for (int i = 0; i < requests; ++i) tokens += plan.Next().output_tokens;
  return tokens;
}

struct Totals {
  int64_t ok = 0, streamed = 0, output_tokens = 0, input_tokens = 0;
};

Totals TotalsOf(const LoadRecord& record) {
  Totals totals;
  for (const RequestOutcome& outcome : record.outcomes) {
    totals.ok += outcome.ok() ? 1 : 0;
    totals.streamed += outcome.streamed() ? 1 : 0;
    totals.output_tokens += outcome.output_tokens;
    totals.input_tokens += outcome.input_tokens;
  }
  return totals;
}

// Returns how many of the plan's first `requests` requests are greedy. Only greedy requests always
// stream tokens: a beam search may stream nothing before its end.
int64_t GreedyRequests(int requests) {
  LoadPlan plan(MixedShape());
  int64_t greedy = 0;
  for (int i = 0; i < requests; ++i) greedy += plan.Next().num_beams == 1 ? 1 : 0;
  return greedy;
}

// A server and the options with which each protocol reaches it.
class Served {
 public:
  explicit Served(const std::function<void(ServerOptions*)>& change = [](ServerOptions*) {})
      : http_(absl::StrCat("127.0.0.1:", FreePort())), server_([&](ServerOptions* options) {
          options->http_api_listen = http_;
          change(options);
        }) {}

  ServerTargetOptions options(const std::string& protocol) const {
    ServerTargetOptions options;
    options.address = protocol == "http" ? http_ : server_.options().listen;
    return options;
  }

 private:
  const std::string http_;
  RunningServer server_;
};

std::unique_ptr<ServerTarget> Connect(const std::string& protocol,
                                      const ServerTargetOptions& options) {
  absl::StatusOr<std::unique_ptr<ServerTarget>> target = ProtocolOf(protocol).connect(options);
  INFO(protocol << ": " << target.status());
  REQUIRE(target.ok());
  return *std::move(target);
}

TEST_CASE("the targets of all protocols and of the engine process the same requests") {
  constexpr int kRequests = 40;
  Served served;
  std::vector<std::unique_ptr<ServerTarget>> targets;
  for (const Protocol& protocol : Protocols()) {
    ServerTargetOptions options = served.options(protocol.name);
    options.channels = 2;
    targets.push_back(Connect(protocol.name, options));
    CHECK(targets.back()->info().vocab == 128);
    CHECK(targets.back()->info().conditions == targets.front()->info().conditions);
    CHECK(targets.back()->info().conditions["model"] == "g2p");
  }

  ModelFlags flags;
  flags.model = G2pModel();
  flags.threads = 1;
  int exit_code = 0;
  std::unique_ptr<Session> session =
      OpenSession(flags, {.tokenizer = TokenizerNeed::kIfThere}, &exit_code);
  REQUIRE(session != nullptr);
  EngineTarget engine(session.get(), /*stream=*/true);

  std::vector<LoadTarget*> all = {&engine};
  for (const auto& target : targets) all.push_back(target.get());
  int64_t input_tokens = -1;
  for (LoadTarget* each : all) {
    LoadPlan plan(MixedShape());
    const Totals totals = TotalsOf(RunLoad({.concurrency = 4, .requests = kRequests}, &plan, each));
    CHECK(totals.ok == kRequests);
    CHECK(totals.output_tokens == PlannedTokens(kRequests));
    CHECK(totals.streamed >= GreedyRequests(kRequests));
    if (input_tokens >= 0) CHECK(totals.input_tokens == input_tokens);
    input_tokens = totals.input_tokens;
  }
}

TEST_CASE("texts are sent by every protocol") {
  Served served;
  LoadShape shape;
  shape.lines = {"wagner", "bach \"quoted\" \\ back", "caf\xc3\xa9"};
  int64_t output_tokens = -1;
  for (const Protocol& protocol : Protocols()) {
    const auto target = Connect(protocol.name, served.options(protocol.name));
    LoadPlan plan(shape);
    const Totals totals = TotalsOf(RunLoad({.concurrency = 2, .requests = 9}, &plan, target.get()));
    CHECK(totals.ok == 9);
    CHECK(totals.streamed == 9);
    if (output_tokens >= 0) CHECK(totals.output_tokens == output_tokens);
    output_tokens = totals.output_tokens;
  }
  CHECK(output_tokens > 0);
}

TEST_CASE("unary responses are complete, in an open loop and in batches") {
  Served served;
  for (const Protocol& protocol : Protocols()) {
    ServerTargetOptions options = served.options(protocol.name);
    options.stream = false;
    for (const int64_t batch : {0, 5}) {
      const auto target = Connect(protocol.name, options);
      LoadShape shape = MixedShape();
      shape.request_rate = 500;
      LoadPlan plan(shape);
      const Totals totals =
          TotalsOf(RunLoad({.static_batch = batch, .requests = 30}, &plan, target.get()));
      CHECK(totals.ok == 30);
      CHECK(totals.streamed == 0);
      CHECK(totals.output_tokens == PlannedTokens(30));
    }
  }
}

TEST_CASE("rejected requests are counted by status code and reason") {
  Served served([](ServerOptions* options) {
    options->models[0].engine.max_queue_requests = 1;
    options->models[0].limits.max_running = 1;
  });
  for (const Protocol& protocol : Protocols()) {
    const auto target = Connect(protocol.name, served.options(protocol.name));
    LoadShape shape = MixedShape();
    shape.beam_share = 0;
    shape.output_tokens = {100, 100};
    LoadPlan plan(shape);
    const LoadRecord record = RunLoad({.concurrency = 16, .requests = 64}, &plan, target.get());
    int refused = 0;
    for (const RequestOutcome& outcome : record.outcomes) {
      if (outcome.ok()) continue;
      ++refused;
      CHECK(outcome.code == absl::StatusCode::kResourceExhausted);
      CHECK(outcome.reason == "QUEUE_FULL");
      CHECK(outcome.retry_info);
    }
    CHECK(record.outcomes.size() == 64);
    CHECK(refused > 0);
    CHECK(refused < 64);
  }
}

TEST_CASE("requests name their adapters, by every protocol") {
  Served served;
  for (const Protocol& protocol : Protocols()) {
    const auto target = Connect(protocol.name, served.options(protocol.name));
    LoadShape shape = MixedShape();
    shape.adapters = {"unknown"};
    LoadPlan plan(shape);
    const LoadRecord record = RunLoad({.concurrency = 2, .requests = 4}, &plan, target.get());
    for (const RequestOutcome& outcome : record.outcomes) {
      CHECK(outcome.code == absl::StatusCode::kNotFound);
    }
  }
}

TEST_CASE("a timeout ends a request with DEADLINE_EXCEEDED, by every protocol") {
  const auto control = std::make_shared<StubControl>();
  control->step_us = 1000;
  Served served([&](ServerOptions* options) { UseStub(&options->models[0], control); });
  for (const Protocol& protocol : Protocols()) {
    ServerTargetOptions options = served.options(protocol.name);
    options.timeout_s = 0.5;
    const auto target = Connect(protocol.name, options);
    LoadShape shape = MixedShape();
    shape.beam_share = 0;
    shape.output_tokens = {4000, 4000};
    LoadPlan plan(shape);
    const LoadRecord record = RunLoad({.concurrency = 2, .requests = 2}, &plan, target.get());
    REQUIRE(record.outcomes.size() == 2);
    for (const RequestOutcome& outcome : record.outcomes) {
      CHECK(outcome.code == absl::StatusCode::kDeadlineExceeded);
    }
  }
}

TEST_CASE("connecting to an absent server is an error") {
  for (const Protocol& protocol : Protocols()) {
    ServerTargetOptions options;
    options.address = "127.0.0.1:1";
    options.timeout_s = 0.2;
    const absl::Status status = protocol.connect(options).status();
    CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(absl::StrContains(status.message(), "--target: no server answered at 127.0.0.1:1"));
  }
}

TEST_CASE("the end of an HTTP request has the code and the reason of its error") {
  const char kBusy[] = R"({"error":{"message":"queue full","code":"QUEUE_FULL"}})";
  RequestEnd end = HttpEnd(429, kBusy, /*retry=*/true);
  CHECK(end.code == absl::StatusCode::kResourceExhausted);
  CHECK(end.reason == "QUEUE_FULL");
  CHECK(end.retry_info);
  end = HttpEnd(200, R"({"usage":{"prompt_tokens":3,"completion_tokens":5}})", /*retry=*/false);
  CHECK(end.code == absl::StatusCode::kOk);
  CHECK(end.input_tokens == 3);
  CHECK(end.output_tokens == 5);
  const std::pair<int, absl::StatusCode> statuses[] = {
      {400, absl::StatusCode::kInvalidArgument},   {401, absl::StatusCode::kUnauthenticated},
      {413, absl::StatusCode::kResourceExhausted}, {418, absl::StatusCode::kInvalidArgument},
      {500, absl::StatusCode::kInternal},          {502, absl::StatusCode::kInternal},
      {503, absl::StatusCode::kUnavailable},       {504, absl::StatusCode::kDeadlineExceeded}};
  for (const auto& [status, code] : statuses) CHECK(HttpEnd(status, "no JSON", false).code == code);
}

}  // namespace
}  // namespace quintet
