// Tests of the load targets, a real gRPC server through both of its protocols and an engine in this
// process, with the shipped model.
#include <algorithm>

#include "tests/catch.h"
#include "tests/server/running_server.h"
#include "tests/tools/run_binary.h"
#include "tools/load/engine_target.h"
#include "tools/load/grpc_target.h"

namespace quintet {
namespace {

LoadShape Shape() {
  LoadShape shape;
  shape.vocab = 128;
  shape.input_tokens = {2, 9};
  shape.output_tokens = {3, 12};
  shape.beam_share = 0.3;
  shape.num_beams = 2;
  return shape;
}

int64_t PlannedTokens(int requests) {
  LoadPlan plan(Shape());
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
  LoadPlan plan(Shape());
  int64_t greedy = 0;
  for (int i = 0; i < requests; ++i) greedy += plan.Next().num_beams == 1 ? 1 : 0;
  return greedy;
}

TEST_CASE("the gRPC and engine targets process the same requests") {
  constexpr int kRequests = 40;
  GrpcTarget::Options options;
  RunningServer server([&](ServerOptions* flags) { options.address = flags->listen; });
  options.channels = 2;
  auto target = GrpcTarget::Connect(options);
  REQUIRE(target.ok());
  CHECK((*target)->info().vocab() == 128);
  options.kserve = true;
  auto kserve = GrpcTarget::Connect(options);
  REQUIRE(kserve.ok());

  ModelFlags flags;
  flags.model = G2pModel();
  flags.threads = 1;
  int exit_code = 0;
  std::unique_ptr<Session> session =
      OpenSession(flags, {.tokenizer = TokenizerNeed::kIfThere}, &exit_code);
  REQUIRE(session != nullptr);
  EngineTarget engine(session.get(), /*stream=*/true);

  int64_t input_tokens = -1;
  for (LoadTarget* each :
       {static_cast<LoadTarget*>(target->get()), static_cast<LoadTarget*>(kserve->get()),
        static_cast<LoadTarget*>(&engine)}) {
    LoadPlan plan(Shape());
    const Totals totals = TotalsOf(RunLoad({.concurrency = 4, .requests = kRequests}, &plan, each));
    CHECK(totals.ok == kRequests);
    CHECK(totals.output_tokens == PlannedTokens(kRequests));
    CHECK(totals.streamed >= GreedyRequests(kRequests));
    if (input_tokens >= 0) CHECK(totals.input_tokens == input_tokens);
    input_tokens = totals.input_tokens;
  }
}

TEST_CASE("unary responses are complete, in an open loop and in batches") {
  GrpcTarget::Options options;
  RunningServer server([&](ServerOptions* flags) { options.address = flags->listen; });
  options.stream = false;
  for (const int64_t batch : {0, 5}) {
    options.kserve = !options.kserve;
    auto target = GrpcTarget::Connect(options);
    REQUIRE(target.ok());
    LoadShape shape = Shape();
    shape.request_rate = 500;
    LoadPlan plan(shape);
    const Totals totals =
        TotalsOf(RunLoad({.static_batch = batch, .requests = 30}, &plan, target->get()));
    CHECK(totals.ok == 30);
    CHECK(totals.streamed == 0);
    CHECK(totals.output_tokens == PlannedTokens(30));
  }
}

TEST_CASE("rejected requests are counted by status code and reason") {
  GrpcTarget::Options options;
  RunningServer server([&](ServerOptions* flags) {
    options.address = flags->listen;
    flags->models[0].engine.max_queue_requests = 1;
    flags->models[0].limits.max_running = 1;
  });
  auto target = GrpcTarget::Connect(options);
  REQUIRE(target.ok());
  LoadShape shape = Shape();
  shape.beam_share = 0;
  shape.output_tokens = {100, 100};
  LoadPlan plan(shape);
  const LoadRecord record = RunLoad({.concurrency = 16, .requests = 64}, &plan, target->get());
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

TEST_CASE("connecting to an absent server is an error") {
  GrpcTarget::Options options;
  options.address = "127.0.0.1:1";
  options.timeout_s = 0.2;
  CHECK_FALSE(GrpcTarget::Connect(options).ok());
}

}  // namespace
}  // namespace quintet
