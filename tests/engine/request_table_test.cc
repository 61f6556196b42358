#include "engine/request_table.h"

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

std::unique_ptr<Job> MakeJob(int64_t tokens) {
  auto job = std::make_unique<Job>();
  job->request.input.assign(static_cast<size_t>(tokens), 5);
  job->queue_tokens = tokens;
  return job;
}

// A request table that holds at most 3 requests and 100 tokens, and the jobs that a test has taken
// from it.
struct RequestScene {
  RequestId Add(int64_t tokens) {
    const auto id = table.Add(MakeJob(tokens), /*now_us=*/0);
    REQUIRE(id.ok());
    return *id;
  }
  std::vector<RequestId> Take() {
    std::vector<std::unique_ptr<Job>> arrivals;
    table.TakeArrivals(&arrivals);
    std::vector<RequestId> ids;
    for (std::unique_ptr<Job>& job : arrivals) {
      ids.push_back(job->id);
      jobs.push_back(std::move(job));
    }
    return ids;
  }
  void Finish(size_t job, JobState state, bool was_queued) {
    jobs[job]->state = state;
    table.OnFinished(*jobs[job], was_queued, /*pages_used=*/7);
  }

  RequestTable table{{.max_queue_requests = 3, .max_queue_tokens = 100}, /*pages_total=*/50};
  std::vector<std::unique_ptr<Job>> jobs;
};

absl::StatusCode CodeOf(const absl::StatusOr<RequestId>& id) { return id.status().code(); }

TEST_CASE("request table: jobs are taken in the order of arrival, with ids and times") {
  RequestScene scene;
  const auto first = scene.table.Add(MakeJob(4), /*now_us=*/11);
  const auto second = scene.table.Add(MakeJob(4), /*now_us=*/12);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(*first != *second);
  CHECK(scene.Take() == std::vector<RequestId>{*first, *second});
  CHECK(scene.jobs[1]->submitted_us == 12);
  CHECK(scene.jobs[1]->needs.id == *second);
  CHECK(scene.jobs[1]->needs.arrival_us == 12);
  CHECK(scene.Take().empty());
}

TEST_CASE("request table: the queue is bounded by requests until they start") {
  RequestScene scene;
  for (int i = 0; i < 3; ++i) scene.Add(1);
  CHECK(scene.table.CheckOpen().code() == absl::StatusCode::kResourceExhausted);
  CHECK(CodeOf(scene.table.Add(MakeJob(1), 0)) == absl::StatusCode::kResourceExhausted);
  // A job that TakeArrivals has removed from the request table counts as queued until OnStarted.
  scene.Take();
  CHECK_FALSE(scene.table.CheckOpen().ok());
  scene.table.OnStarted(*scene.jobs[0]);
  CHECK(scene.table.CheckOpen().ok());
  scene.Add(1);
  CHECK(scene.table.counters().accepted == 4);
}

TEST_CASE("request table: the queue is bounded by tokens until requests start or end") {
  RequestScene scene;
  scene.Add(60);
  CHECK(CodeOf(scene.table.Add(MakeJob(41), 0)) == absl::StatusCode::kResourceExhausted);
  scene.Add(40);
  scene.Take();
  scene.table.OnStarted(*scene.jobs[0]);
  CHECK(CodeOf(scene.table.Add(MakeJob(61), 0)) == absl::StatusCode::kResourceExhausted);
  scene.Finish(1, JobState::kCancelled, /*was_queued=*/true);
  scene.Add(100);
}

TEST_CASE("request table: a cancellation is reported once, and only for an unfinished request") {
  RequestScene scene;
  const RequestId first = scene.Add(1), second = scene.Add(1);
  scene.Take();
  scene.Finish(1, JobState::kDone, /*was_queued=*/true);
  scene.table.Cancel(first);
  scene.table.Cancel(first);
  scene.table.Cancel(second);
  scene.table.Cancel(12345);
  RequestId id = 0;
  REQUIRE(scene.table.NextCancelled(&id));
  CHECK(id == first);
  CHECK_FALSE(scene.table.NextCancelled(&id));
  scene.table.Cancel(first);
  CHECK_FALSE(scene.table.NextCancelled(&id));
}

TEST_CASE("request table: counters follow each request from queue to end") {
  RequestScene scene;
  for (int i = 0; i < 3; ++i) scene.Add(10);
  scene.Take();
  CHECK(scene.table.counters().waiting == 3);
  scene.table.OnStarted(*scene.jobs[0]);
  scene.table.OnStarted(*scene.jobs[1]);
  scene.table.AddGenerated(4);
  EngineCounters counters = scene.table.counters();
  CHECK(counters.waiting == 1);
  CHECK(counters.running == 2);
  CHECK(counters.prompt_tokens == 20);
  CHECK(counters.generated_tokens == 4);
  CHECK(scene.table.OnStep(/*pages_used=*/9, /*cache_queries=*/3, /*cache_hits=*/2));
  scene.Finish(0, JobState::kDone, /*was_queued=*/false);
  scene.Finish(1, JobState::kFailed, /*was_queued=*/false);
  scene.Finish(2, JobState::kCancelled, /*was_queued=*/true);
  counters = scene.table.counters();
  CHECK(counters.accepted == counters.finished + counters.failed + counters.cancelled);
  CHECK(counters.finished == 1);
  CHECK(counters.failed == 1);
  CHECK(counters.cancelled == 1);
  CHECK(counters.running == 0);
  CHECK(counters.waiting == 0);
  CHECK(counters.pages_used == 7);
  CHECK(counters.pages_total == 50);
  CHECK(counters.encoder_cache_queries == 3);
  CHECK(counters.encoder_cache_hits == 2);
  // OnStep returns false if no unfinished request is left.
  CHECK_FALSE(scene.table.OnStep(0, 0, 0));
  CHECK(scene.table.counters().steps == 2);
}

TEST_CASE("request table: after a device failure requests are refused with its status") {
  RequestScene scene;
  CHECK(scene.table.status().ok());
  const absl::Status failed = absl::UnavailableError("the device failed");
  scene.table.Fail(failed);
  CHECK(scene.table.status() == failed);
  CHECK(scene.table.CheckOpen() == failed);
  CHECK(scene.table.Add(MakeJob(1), 0).status() == failed);
  CHECK(scene.table.counters().accepted == 0);
}

TEST_CASE("request table: a submitted request ends the wait for work") {
  RequestScene scene;
  scene.table.WaitForWork(/*timeout_us=*/1);  // without work it returns after the timeout
  std::thread submitter([&] { (void)scene.table.Add(MakeJob(1), 0); });
  // A lost notification would let the test hang for an hour.
  while (scene.Take().empty()) scene.table.WaitForWork(/*timeout_us=*/3'600'000'000);
  submitter.join();
  CHECK(scene.jobs.size() == 1);
}

TEST_CASE("request table: concurrent submissions get different ids and lose no request") {
  constexpr int kThreads = 4, kEach = 200;
  RequestTable table({.max_queue_requests = kThreads * kEach}, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        const auto id = table.Add(MakeJob(1), 0);
        if (id.ok() && i % 2 == 0) table.Cancel(*id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::unique_ptr<Job>> arrivals;
  table.TakeArrivals(&arrivals);
  REQUIRE(arrivals.size() == kThreads * kEach);
  for (size_t i = 0; i < arrivals.size(); ++i) CHECK(arrivals[i]->id == i + 1);
  int cancelled = 0;
  for (RequestId id; table.NextCancelled(&id);) ++cancelled;
  CHECK(cancelled == kThreads * kEach / 2);
}

}  // namespace
}  // namespace quintet
