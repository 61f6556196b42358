#include "tools/load/report.h"

#include <numeric>

#include "tests/catch.h"

namespace quintet {
namespace {

// A request that was scheduled at 1 s and sent 2 ms late. Its first token arrived 50 ms after the
// scheduled time; its 11 tokens have intervals of 10 ms.
RequestOutcome Answered() {
  RequestOutcome outcome;
  outcome.measured = true;
  outcome.scheduled_us = 1'000'000;
  outcome.sent_us = 1'002'000;
  outcome.first_us = 1'050'000;
  outcome.done_us = 1'150'000;
  outcome.input_tokens = 7;
  outcome.output_tokens = 11;
  return outcome;
}

RequestOutcome Refused() {
  RequestOutcome outcome = Answered();
  outcome.first_us = -1;
  outcome.done_us = 1'003'000;
  outcome.output_tokens = 0;
  outcome.code = absl::StatusCode::kResourceExhausted;
  outcome.reason = "QUEUE_FULL";
  outcome.retry_info = true;
  return outcome;
}

TEST_CASE("quantiles are nearest ranks") {
  std::vector<double> values(100);
  std::iota(values.begin(), values.end(), 1.0);
  CHECK(Quantile(values, 0.50) == 50);
  CHECK(Quantile(values, 0.99) == 99);
  CHECK(Quantile(values, 1.0) == 100);
  CHECK(Quantile({5}, 0.5) == 5);
  CHECK(Quantile({1, 2, 3}, 0.5) == 2);
  CHECK(Quantile({1, 2, 3, 4}, 0.5) == 2);
  CHECK(Quantile({1, 2, 3, 4}, 0.51) == 3);
}

TEST_CASE("a distribution accepts unsorted and empty values") {
  const auto distribution = Distribution({9, 1, 2});
  CHECK(distribution["count"] == 3);
  CHECK(distribution["mean"] == 4.0);
  CHECK(distribution["p50"] == 2.0);
  CHECK(distribution["max"] == 9.0);
  CHECK(Distribution({}) == nlohmann::ordered_json{{"count", 0}});
}

TEST_CASE("latencies count from the scheduled time") {
  const RequestOutcome outcome = Answered();
  CHECK(outcome.late_ms() == 2.0);
  CHECK(outcome.ttft_ms() == 50.0);
  CHECK(outcome.tpot_ms() == 10.0);
  CHECK(outcome.e2e_ms() == 150.0);
}

TEST_CASE("goodput counts requests within every limit") {
  struct Case {
    std::vector<std::string> limits;
    bool good;
  };
  for (const Case& c : std::vector<Case>{{{}, true},
                                         {{"ttft:50"}, true},
                                         {{"ttft:49.9"}, false},
                                         {{"tpot:10"}, true},
                                         {{"tpot:9.9"}, false},
                                         {{"e2e:150"}, true},
                                         {{"e2e:149"}, false},
                                         {{"ttft:60", "tpot:20", "e2e:200"}, true},
                                         {{"ttft:60", "tpot:20", "e2e:100"}, false}}) {
    INFO(c.limits.size());
    CHECK(IsGood(Answered(), *ParseGoodput(c.limits)) == c.good);
  }
  CHECK_FALSE(IsGood(Refused(), {}));
  // A unary response: the ttft limit applies to the time of the whole response, and the limit on
  // time per token does not apply.
  RequestOutcome whole = Answered();
  whole.first_us = -1;
  CHECK(IsGood(whole, *ParseGoodput({"ttft:150", "tpot:0.1"})));
  CHECK_FALSE(IsGood(whole, *ParseGoodput({"ttft:149"})));
  // A response of one token has no time per token, so the limit on that time (tpot) does not apply.
  RequestOutcome single = Answered();
  single.output_tokens = 1;
  CHECK(IsGood(single, *ParseGoodput({"tpot:0.1"})));
}

TEST_CASE("invalid goodput limits are rejected") {
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"ttft"},
                                             {"ttft:"},
                                             {"ttft:x"},
                                             {"ttft:0"},
                                             {"ttft:-1"},
                                             {"ttft:inf"},
                                             {"itl:5"},
                                             {"ttft:1", "ttft:2"}}) {
    INFO(bad.front());
    CHECK(absl::IsInvalidArgument(ParseGoodput(bad).status()));
  }
}

TEST_CASE("a trace has the requests that ended with OK in the order of their arrivals") {
  LoadRecord record;
  RequestOutcome later = Answered(), unary = Answered();
  later.scheduled_us += 500'000;
  later.first_us += 500'000;
  later.done_us += 500'000;
  later.num_beams = 4;
  unary.measured = false;
  unary.scheduled_us -= 250'000;
  unary.first_us = -1;
  record.outcomes = {later, Refused(), Answered(), unary};
  CHECK(TraceOfLoad(record) ==
        R"({"at_s":0.0,"input_tokens":7,"output_tokens":11,"num_beams":1,"measured":false,)"
        R"("e2e_ms":400.0})"
        "\n"
        R"({"at_s":0.25,"input_tokens":7,"output_tokens":11,"num_beams":1,"measured":true,)"
        R"("ttft_ms":50.0,"e2e_ms":150.0})"
        "\n"
        R"({"at_s":0.75,"input_tokens":7,"output_tokens":11,"num_beams":4,"measured":true,)"
        R"("ttft_ms":50.0,"e2e_ms":150.0})"
        "\n");
  CHECK(TraceOfLoad(LoadRecord()).empty());
}

TEST_CASE("a summary counts what was measured") {
  LoadRecord record;
  RequestOutcome warmup = Answered();
  warmup.measured = false;
  RequestOutcome slow = Answered();
  slow.first_us = 1'140'000;
  RequestOutcome after = Answered();  // good, but completed after the window
  after.done_us = 3'100'000;
  record.outcomes = {warmup, Answered(), slow, Refused(), after};
  record.sent = 5;
  record.begin_us = 1'000'000;
  record.end_us = 3'000'000;
  record.window_requests = 3;
  record.window_input_tokens = 21;
  record.window_output_tokens = 33;
  record.gaps_ms = {10, 10, 12};
  const auto summary = SummarizeLoad(record, *ParseGoodput({"ttft:75"}));
  CHECK(summary["measured"] == 4);
  CHECK(summary["answered"] == 5);
  CHECK(summary["codes"]["OK"]["count"] == 3);
  const auto& refused = summary["codes"]["RESOURCE_EXHAUSTED"];
  CHECK(refused["count"] == 1);
  CHECK(refused["with_retry_info"] == 1);
  CHECK(refused["reasons"]["QUEUE_FULL"] == 1);
  CHECK(refused["answered_ms"]["max"] == 1.0);
  CHECK(summary["window_s"] == 2.0);
  CHECK(summary["requests_per_s"] == 1.5);
  CHECK(summary["input_tokens_per_s"] == 10.5);
  CHECK(summary["output_tokens_per_s"] == 16.5);
  CHECK(summary["goodput"]["requests"] == 2);
  CHECK(summary["goodput"]["requests_per_s"] == 0.5);
  CHECK(summary["goodput"]["share"] == 0.5);
  CHECK(summary["ttft_ms"]["count"] == 3);
  CHECK(summary["ttft_ms"]["max"] == 140.0);
  CHECK(summary["itl_ms"]["max"] == 12.0);
  CHECK(summary["late_ms"]["count"] == 4);
}

}  // namespace
}  // namespace quintet
