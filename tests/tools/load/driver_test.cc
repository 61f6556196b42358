// Tests the load driver with a simulated target: which requests it sends, when it sends them, and
// which results it records. No test depends on the speed of the machine.
#include "tools/load/driver.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/clock.h"
#include "tests/catch.h"

namespace quintet {
namespace {

// A LoadTarget, as a fake server. Each Poll ends one open request, the one that was sent first: it
// reports two batches of tokens (2, then 1) and the result, but for every tenth request only an
// error. Each event is reported with a time shortly before the report.
class OneByOne : public LoadTarget {
 public:
  // Completes no request until `hold_until_open` requests have been open at the same time or
  // `hold_us` microseconds have passed.
  explicit OneByOne(size_t hold_until_open = 0, int64_t hold_us = 0)
      : hold_until_open_(hold_until_open), release_us_(MonotonicMicros() + hold_us) {}

  void Send(uint64_t id, const PlannedRequest& request) override {
    std::lock_guard<std::mutex> lock(mutex_);
    sent_tokens_.push_back(request.output_tokens);
    sent_input_.push_back(request.ids.size());
    open_.push_back(id);
    most_open_ = std::max(most_open_, open_.size());
    open_when_sent_.push_back(open_.size());
  }
  void Poll(int64_t, LoadObserver* observer) override {
    uint64_t id;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const bool held = most_open_ < hold_until_open_ && MonotonicMicros() < release_us_;
      if (open_.empty() || held) {
        std::this_thread::yield();
        return;
      }
      id = open_.front();
      open_.erase(open_.begin());
    }
    const int64_t now = MonotonicMicros();
    while (MonotonicMicros() <= now) continue;
    if (answered_ % 10 == 9) {
      observer->OnEnd(id, {.code = absl::StatusCode::kResourceExhausted}, now);
    } else {
      observer->OnTokens(id, 2, now);
      observer->OnTokens(id, 1, now);
      observer->OnEnd(id, {.input_tokens = 5, .output_tokens = 4}, now);
    }
    ++answered_;
  }

  std::mutex mutex_;
  const size_t hold_until_open_;
  const int64_t release_us_;
  std::vector<uint64_t> open_;
  std::vector<size_t> open_when_sent_;
  std::vector<uint32_t> sent_tokens_;
  std::vector<size_t> sent_input_;
  size_t most_open_ = 0;
  int answered_ = 0;
};

LoadPlan MakePlan(double rate, TokenRange output_tokens = {}) {
  LoadShape shape;
  shape.output_tokens = output_tokens;
  shape.request_rate = rate;
  shape.vocab = 1000;
  shape.input_tokens = {1, 3};
  return LoadPlan(shape);
}

int64_t Measured(const LoadRecord& record) {
  return std::count_if(record.outcomes.begin(), record.outcomes.end(),
                       [](const RequestOutcome& outcome) { return outcome.measured; });
}

TEST_CASE("a closed loop keeps its concurrency and completes every request") {
  OneByOne target(8, 60'000'000);
  LoadPlan plan = MakePlan(0);
  const LoadRecord record =
      RunLoad({.concurrency = 8, .warmup = 20, .requests = 100}, &plan, &target);
  CHECK(record.sent == 120);
  CHECK(record.outcomes.size() == 120);
  CHECK(Measured(record) == 100);
  for (const RequestOutcome& outcome : record.outcomes) {
    if (outcome.ok()) CHECK(outcome.done_us == outcome.first_us);
  }
  CHECK(target.most_open_ == 8);
  CHECK(*std::min_element(target.open_when_sent_.begin() + 8, target.open_when_sent_.end()) == 8);
}

TEST_CASE(
    "an open loop does not wait for requests in flight; latency counts from the scheduled time") {
  constexpr int64_t kHoldUs = 100'000;
  OneByOne target(1000, kHoldUs);  // never reached: nothing completes for 100 ms
  LoadPlan plan = MakePlan(2000), same = MakePlan(2000);
  const LoadRecord record = RunLoad({.warmup = 10, .requests = 90}, &plan, &target);
  REQUIRE(record.outcomes.size() == 100);
  CHECK(target.most_open_ > 8);
  const int64_t start_us = record.outcomes[0].scheduled_us - same.Next().at_us;
  for (size_t i = 1; i < 100; ++i) {
    // OneByOne ends requests in the order of sending, so the outcomes have the LoadPlan's order.
    CHECK(record.outcomes[i].scheduled_us == start_us + same.Next().at_us);
    CHECK(record.outcomes[i].sent_us >= record.outcomes[i].scheduled_us);
    CHECK(record.outcomes[i].measured == (i >= 10));
  }
  CHECK(record.begin_us == record.outcomes[10].scheduled_us);
  CHECK(record.end_us >= record.outcomes[99].scheduled_us);
}

TEST_CASE("a static batch is sent after the previous batch has ended") {
  OneByOne target;
  LoadPlan plan = MakePlan(20000);
  const LoadRecord record =
      RunLoad({.static_batch = 4, .warmup = 50, .requests = 150}, &plan, &target);
  REQUIRE(record.outcomes.size() == 200);
  CHECK(target.most_open_ <= 4);
  CHECK(Measured(record) == 150);
  const std::vector<RequestOutcome>& outcomes = record.outcomes;  // in sending order
  size_t batch = 0;     // the first request of the current batch
  int64_t done_us = 0;  // latest end of the requests before i
  for (size_t i = 0; i < 200; ++i) {
    if (outcomes[i].sent_us > done_us) {
      batch = i;
    } else {  // sent with its batch, before any of that completed
      CHECK(i - batch < 4);
      CHECK(outcomes[i].sent_us <= outcomes[batch].done_us);
    }
    // The measurement window begins when the batch of the first measured request is sent, not at
    // the scheduled time of that request.
    if (i == 50) {
      CHECK(record.begin_us <= outcomes[i].sent_us);
      CHECK(record.begin_us > outcomes[batch - 1].done_us);
    }
    done_us = std::max(done_us, outcomes[i].done_us);
  }
}

TEST_CASE("a padded batch runs as long as its longest row and counts only requested tokens") {
  OneByOne target;
  // All requests are scheduled at the same time, so batches are full however slow the machine is.
  LoadPlan plan = MakePlan(1e9, {1, 4}), same = MakePlan(1e9, {1, 4});
  const LoadRecord record =
      RunLoad({.static_batch = 4, .padded = true, .requests = 200}, &plan, &target);
  REQUIRE(record.outcomes.size() == 200);
  REQUIRE(target.sent_tokens_.size() == 200);
  int longer = 0;
  for (size_t i = 0; i < 200; ++i) {
    const PlannedRequest planned = same.Next();
    const uint32_t wanted = planned.output_tokens, sent = target.sent_tokens_[i];
    CHECK(sent >= wanted);
    CHECK(target.sent_input_[i] >= planned.ids.size());
    longer += sent > wanted && target.sent_input_[i] > planned.ids.size() ? 1 : 0;
    // All requests of a padded batch must be sent with the same input and output length. A request
    // that is sent while others are in flight belongs to the batch of the request sent before it.
    if (target.open_when_sent_[i] > 1) {
      CHECK(sent == target.sent_tokens_[i - 1]);
      CHECK(target.sent_input_[i] == target.sent_input_[i - 1]);
    }
    // The target rejects every tenth request.
    if (record.outcomes[i].ok()) CHECK(record.outcomes[i].output_tokens == wanted);
  }
  CHECK(longer > 0);
}

TEST_CASE("streamed tokens and errors are counted") {
  OneByOne target;
  LoadPlan plan = MakePlan(0);
  const LoadRecord record = RunLoad({.concurrency = 1, .requests = 100}, &plan, &target);
  int refused = 0;
  for (const RequestOutcome& outcome : record.outcomes) {
    refused += outcome.ok() ? 0 : 1;
    CHECK(outcome.streamed() == outcome.ok());
    if (!outcome.ok()) continue;
    CHECK(outcome.output_tokens == 4);
    CHECK(outcome.input_tokens == 5);
    CHECK(outcome.first_us >= outcome.sent_us);
    CHECK(outcome.done_us >= outcome.first_us);
  }
  CHECK(refused == 10);
  CHECK(record.gaps_ms.size() == 90);
  // All 90 successful requests completed within the measurement window. Of the four tokens of each
  // request, three were streamed; the last one came with the result.
  CHECK(record.window_requests == 90);
  CHECK(record.window_output_tokens == 360);
  CHECK(record.window_input_tokens == 450);
}

TEST_CASE("--duration bounds the time of sending") {
  OneByOne target;
  LoadPlan plan = MakePlan(5);
  const LoadRecord record = RunLoad({.duration_s = 0.5}, &plan, &target);
  for (const RequestOutcome& outcome : record.outcomes) {
    CHECK(outcome.scheduled_us <= record.begin_us + 500'000);
  }
  CHECK(record.end_us >= record.begin_us + 500'000);
  CHECK(record.sent == static_cast<int64_t>(record.outcomes.size()));
}

}  // namespace
}  // namespace quintet
