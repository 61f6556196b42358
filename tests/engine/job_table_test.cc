#include "engine/job_table.h"

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// Records when OnStart and OnDone are called.
struct StartSink : RecordingSink {
  void OnStart() override { ++starts; }
  int starts = 0;
};

// A job table with a fake model that has 8 KV cache pages of 4 tokens and room for 3 sequences. The
// tests call the table as the engine does in its steps.
struct JobScene {
  explicit JobScene(bool causal = true, int64_t adapters = 0, int64_t slots = 0)
      : model({.causal = causal, .adapters = adapters, .adapter_slots = slots}, &pool),
        scores(&model),
        encoder(&model, &cache, &scores, [this] { return now_us; }),
        requests({.max_queue_requests = 10}, capacity.pages),
        jobs(std::make_unique<JobTable>(capacity, &requests, &encoder, &model,
                                        [this] { return now_us; })) {
    capacity.adapters = model.adapter_slots();
  }

  // Submits a request with a prompt of 2 tokens. It needs (2 + new_tokens) / 4 pages, rounded up.
  RequestId Submit(int64_t new_tokens, Priority priority = Priority::kNormal,
                   int64_t deadline_us = 1'000'000) {
    DecodingOptions options;
    options.max_new_tokens = static_cast<int32_t>(new_tokens);
    Request request = GenerateRequest(model, {4, 5}, options);
    request.priority = priority;
    request.deadline_us = deadline_us;
    return Submit(std::move(request));
  }
  RequestId Submit(Request request) {
    sinks.push_back(std::make_shared<StartSink>());
    request.sink = sinks.back();
    auto job = PlanJob(std::move(request), model.config(), nullptr, capacity);
    REQUIRE(job.ok());
    const auto id = requests.Add(*std::move(job), now_us);
    REQUIRE(id.ok());
    return *id;
  }
  void TakeArrivals() {
    jobs->TakeArrivals([](size_t) {});
  }
  // Admits and starts all requests that fit, and returns their ids in admission order.
  std::vector<RequestId> Start() {
    AdmissionBudget budget = jobs->FreeBudget();
    budget.encode_tokens = capacity.encode_tokens;
    std::vector<Job*> admitted;
    jobs->Admit(now_us, budget, &admitted);
    for (Job* job : admitted) {
      job->MoveTo(job->encodes ? JobState::kEncoding : JobState::kDecoding);
    }
    jobs->Start(admitted, now_us);
    std::vector<RequestId> ids;
    for (Job* job : admitted) {
      REQUIRE_FALSE(job->out_of_memory);
      if (!job->encodes) jobs->StartDecoding(job);
      ids.push_back(job->id);
    }
    return ids;
  }
  // Submits a request and starts it, with all others that fit.
  RequestId SubmitAndStart(int64_t new_tokens, Priority priority = Priority::kNormal,
                           int64_t deadline_us = 1'000'000) {
    const RequestId id = Submit(new_tokens, priority, deadline_us);
    TakeArrivals();
    Start();
    return id;
  }
  absl::StatusCode code(size_t request) const { return sinks[request]->status.code(); }

  Capacity capacity{.running_sequences = 3,
                    .pages = 8,
                    .page_size = 4,
                    .encode_tokens = 64,
                    .queue_tokens = 1000};
  int64_t now_us = 100;
  ThreadPool pool{1};
  FakeModel model;
  EncoderCache cache{0};
  TargetScores scores;
  EncoderRunner encoder;
  RequestTable requests;
  std::unique_ptr<JobTable> jobs;
  std::vector<std::shared_ptr<StartSink>> sinks;
};

TEST_CASE("job table: jobs wait for the slots of adapters, which started jobs hold") {
  JobScene scene(true, 3, 1);
  const auto submit = [&](int adapter, Priority priority = Priority::kNormal) {
    Request request = GenerateRequest(scene.model, {4, 5});
    request.decoding.max_new_tokens = 2;
    request.priority = priority;
    if (adapter >= 0) request.adapter = scene.model.adapters()[static_cast<size_t>(adapter)];
    return scene.Submit(std::move(request));
  };
  const RequestId first = submit(0), same = submit(0);
  const RequestId other = submit(1, Priority::kLow), none = submit(-1, Priority::kLow);
  scene.TakeArrivals();
  CHECK(scene.Start() == std::vector<RequestId>{first, same});
  CHECK(scene.jobs->CurrentPressure().waiting == Priority::kLow);  // not for pages or sequences
  const auto end = [&](RequestId id) {
    scene.jobs->Finish(scene.jobs->Find(id), JobState::kCancelled, absl::CancelledError("x"));
  };
  end(first);
  CHECK(scene.Start().empty());  // `same` still uses the slot
  end(same);
  CHECK_FALSE(scene.jobs->CurrentPressure().waiting.has_value());
  CHECK(scene.Start() == std::vector<RequestId>{other, none});
  CHECK(scene.jobs->Find(none)->adapter == -1);
  end(none);
  end(other);
  CHECK(scene.model.adapter_slots()->CanTake(*scene.model.adapters()[2]));

  FakeModel stranger({.adapters = 1}, &scene.pool);
  Request request = GenerateRequest(scene.model, {4, 5});
  request.adapter = stranger.adapters()[0];
  request.sink = std::make_shared<StartSink>();
  CHECK(absl::IsInvalidArgument(
      PlanJob(std::move(request), scene.model.config(), nullptr, scene.capacity).status()));
}

TEST_CASE("job table: started jobs hold their pages and sequences until they end") {
  JobScene scene;
  const RequestId first = scene.Submit(10), second = scene.Submit(6), third = scene.Submit(10);
  scene.TakeArrivals();
  CHECK(scene.jobs->size() == 3);
  CHECK(scene.jobs->waiting() == 3);
  // The first two requests need 3 + 2 of the 8 pages; the third needs all 3 that are left.
  CHECK(scene.Start() == std::vector<RequestId>{first, second, third});
  CHECK(scene.jobs->waiting() == 0);
  CHECK(scene.jobs->used_pages() == 8);
  CHECK(scene.jobs->FreeBudget().pages == 0);
  CHECK(scene.jobs->FreeBudget().sequences == 0);
  CHECK(scene.jobs->decoding().size() == 3);
  CHECK(scene.sinks[2]->starts == 1);

  scene.jobs->Finish(scene.jobs->Find(second), JobState::kFailed, absl::InternalError("broken"));
  CHECK(scene.code(1) == absl::StatusCode::kInternal);
  CHECK(scene.jobs->Find(second) == nullptr);
  CHECK(scene.jobs->FreeBudget().pages == 2);
  CHECK(scene.jobs->FreeBudget().sequences == 1);
  CHECK(scene.jobs->decoding() ==
        std::vector<Job*>{scene.jobs->Find(first), scene.jobs->Find(third)});
  CHECK(scene.requests.counters().failed == 1);
  CHECK(scene.requests.counters().pages_used == 6);
}

TEST_CASE("job table: the resources of a finished job are free before its sink is called") {
  JobScene scene(/*causal=*/false);
  Request request;
  request.kind = RequestKind::kScore;
  request.input = {4, 5};
  request.targets = {{6, 7, 8}};
  const RequestId id = scene.Submit(std::move(request));
  scene.TakeArrivals();
  scene.Start();
  CHECK(scene.jobs->used_pages() == 2);  // one for the encoder output, one for the target
  scene.jobs->Find(id)->MoveTo(JobState::kDecoding);
  scene.jobs->StartDecoding(scene.jobs->Find(id));
  scene.now_us = 150;
  Job* const finished = scene.jobs->Find(id);
  scene.jobs->QueueDone({&finished, 1});
  CHECK(scene.jobs->used_pages() == 0);
  CHECK(scene.jobs->decoding().empty());
  CHECK(scene.sinks[0]->done_calls == 0);
  CHECK(scene.requests.counters().running == 1);
  scene.jobs->SendOutputs();
  CHECK(scene.sinks[0]->done_calls == 1);
  CHECK(scene.sinks[0]->status.ok());
  CHECK(scene.sinks[0]->result.timing.total_us == 50);
  CHECK(scene.requests.counters().finished == 1);
  scene.jobs->SendOutputs();
  CHECK(scene.sinks[0]->done_calls == 1);
}

TEST_CASE(
    "job table: cancelled jobs end in the queue and while they run; unknown ids are ignored") {
  JobScene scene;
  const RequestId running = scene.SubmitAndStart(10);
  const RequestId queued = scene.Submit(10);
  const RequestId other = scene.Submit(10);
  scene.TakeArrivals();
  scene.requests.Cancel(running);
  scene.requests.Cancel(queued);
  scene.jobs->Finish(scene.jobs->Find(queued), JobState::kFailed, absl::InternalError(""));
  scene.jobs->FinishCancelled();
  CHECK(scene.code(0) == absl::StatusCode::kCancelled);
  CHECK(scene.code(1) == absl::StatusCode::kInternal);  // it ended before
  CHECK(scene.sinks[1]->done_calls == 1);
  CHECK(scene.jobs->Find(other) != nullptr);
  CHECK(scene.jobs->used_pages() == 0);
  CHECK(scene.jobs->waiting() == 1);
}

TEST_CASE("job table: expired jobs end with a status that names the queue or decoding") {
  JobScene scene;
  scene.SubmitAndStart(10, Priority::kNormal, /*deadline_us=*/200);
  scene.Submit(10, Priority::kNormal, /*deadline_us=*/200);
  scene.Submit(10, Priority::kNormal, /*deadline_us=*/201);
  scene.TakeArrivals();
  scene.jobs->FinishExpired(199);
  CHECK(scene.jobs->size() == 3);
  scene.jobs->FinishExpired(200);
  CHECK(scene.jobs->size() == 1);
  CHECK(scene.sinks[0]->status.message() == "the deadline passed while decoding");
  CHECK(scene.sinks[1]->status.message() == "the deadline passed in the queue");
  CHECK(scene.code(0) == absl::StatusCode::kDeadlineExceeded);
  CHECK(scene.sinks[2]->done_calls == 0);
  scene.Submit(10, Priority::kNormal, /*deadline_us=*/300);
  scene.TakeArrivals();
  scene.jobs->FinishExpired(250);
  CHECK(scene.code(2) == absl::StatusCode::kDeadlineExceeded);
  scene.jobs->FinishExpired(299);
  CHECK(scene.sinks[3]->done_calls == 0);
  scene.jobs->FinishExpired(300);
  CHECK(scene.code(3) == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("job table: a failed allocation on arrival ends only that request") {
  JobScene scene;
  for (int i = 0; i < 3; ++i) scene.Submit(2);
  std::vector<size_t> reserved;
  scene.jobs->TakeArrivals([&](size_t jobs) {
    reserved.push_back(jobs);
    if (reserved.size() == 2) throw std::bad_alloc();
  });
  CHECK(reserved == std::vector<size_t>{1, 2, 2});  // the failed job does not count
  CHECK(scene.sinks[0]->done_calls == 0);
  CHECK(scene.code(1) == absl::StatusCode::kResourceExhausted);
  CHECK(scene.jobs->size() == 2);
  CHECK(scene.jobs->waiting() == 2);
  CHECK(scene.requests.counters().waiting == 2);
}

TEST_CASE("job table: jobs marked out of memory end, and the others continue") {
  JobScene scene;
  const RequestId first = scene.Submit(2), second = scene.Submit(2);
  scene.TakeArrivals();
  scene.Start();
  scene.jobs->Find(second)->out_of_memory = true;
  scene.jobs->FinishOutOfMemory();
  CHECK(scene.code(1) == absl::StatusCode::kResourceExhausted);
  CHECK(scene.jobs->Find(first) != nullptr);
  CHECK(scene.jobs->size() == 1);
}

TEST_CASE(
    "job table: after a device failure running jobs get its status, queued ones UNAVAILABLE") {
  JobScene scene;
  scene.SubmitAndStart(10);
  scene.Submit(10);
  scene.TakeArrivals();
  scene.jobs->FailAll(absl::InternalError("illegal access"));
  CHECK(scene.code(0) == absl::StatusCode::kInternal);
  CHECK(scene.code(1) == absl::StatusCode::kUnavailable);
  CHECK(scene.sinks[1]->status.message() == "the device failed: illegal access");
  CHECK(scene.jobs->size() == 0);
  CHECK(scene.requests.status().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("job table: the destructor ends every job, also those that have not been taken") {
  JobScene scene;
  scene.SubmitAndStart(10);
  scene.Submit(10);
  scene.TakeArrivals();
  scene.Submit(10);
  scene.jobs.reset();
  for (size_t i = 0; i < 3; ++i) {
    CHECK(scene.code(i) == absl::StatusCode::kUnavailable);
    CHECK(scene.sinks[i]->done_calls == 1);
  }
  CHECK(scene.requests.counters().failed == 3);
}

TEST_CASE("job table: a queued request competes with encoding if it fits, else with running jobs") {
  JobScene scene;
  CHECK_FALSE(scene.jobs->CurrentPressure().encoding.has_value());
  CHECK_FALSE(scene.jobs->CurrentPressure().waiting.has_value());
  scene.Submit(2, Priority::kHigh);
  scene.TakeArrivals();
  CHECK(scene.jobs->CurrentPressure().encoding == Priority::kHigh);
  CHECK_FALSE(scene.jobs->CurrentPressure().waiting.has_value());
  scene.Start();
  scene.Submit(30, Priority::kHigh);  // all 8 pages
  scene.TakeArrivals();
  CHECK_FALSE(scene.jobs->CurrentPressure().encoding.has_value());
  CHECK(scene.jobs->CurrentPressure().waiting == Priority::kHigh);
}

}  // namespace
}  // namespace quintet
