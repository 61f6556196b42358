// Tests when the results of a step are delivered: at the end of the step, or, with async
// scheduling, after the next step has been enqueued.
#include "engine/engine.h"
#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// Streaming requests on a model that never chooses eos.
struct QueueScene {
  explicit QueueScene(bool async_scheduling) : model({.eos_bonus = -1000.0f}, &pool) {
    auto created = Engine::Create(&model, nullptr, {.async_scheduling = async_scheduling});
    REQUIRE(created.ok());
    engine = *std::move(created);
  }
  RequestId Submit(int32_t token, int64_t new_tokens) {
    DecodingOptions options;
    options.max_new_tokens = new_tokens;
    Request request = GenerateRequest(model, {token, 5}, options);
    request.stream = true;
    requests.push_back(request);
    const auto id = engine->Submit(std::move(request));
    REQUIRE(id.ok());
    return *id;
  }
  const RecordingSink& sink(size_t i) const {
    return static_cast<const RecordingSink&>(*requests[i].sink);
  }
  size_t streamed(size_t i) const {
    return sink(i).streamed_ids.empty() ? 0 : sink(i).streamed_ids[0].size();
  }
  void Step(int steps) {
    while (steps-- > 0) engine->Step();
  }

  ThreadPool pool{1};
  FakeModel model;
  std::vector<Request> requests;
  std::unique_ptr<Engine> engine;
};

TEST_CASE("async scheduling: tokens of a step are delivered by the next step") {
  for (const bool async_scheduling : {false, true}) {
    QueueScene scene(async_scheduling);
    scene.Submit(4, 10);
    scene.Step(5);
    CHECK(scene.streamed(0) == (async_scheduling ? 4 : 5));
    CHECK(scene.engine->counters().generated_tokens == 5);
  }
}

TEST_CASE("a request that ends early has received all its tokens") {
  for (const bool async_scheduling : {false, true}) {
    QueueScene scene(async_scheduling);
    const RequestId id = scene.Submit(4, 10);
    scene.Submit(6, 20);
    scene.Step(5);
    scene.engine->Cancel(id);
    scene.Step(1);
    CHECK(scene.sink(0).status.code() == absl::StatusCode::kCancelled);
    CHECK(scene.streamed(0) == 5);
    scene.engine.reset();
    CHECK(scene.sink(1).status.code() == absl::StatusCode::kUnavailable);
    CHECK(scene.streamed(1) == 6);
  }
}

TEST_CASE("a finished request gets OnDone although all others have ended since") {
  QueueScene scene(/*async_scheduling=*/true);
  scene.Submit(4, 3);
  const RequestId other = scene.Submit(6, 20);
  scene.Step(3);
  REQUIRE(scene.sink(0).done_calls == 0);  // finished; OnDone follows in the next step
  scene.engine->Cancel(other);
  scene.Step(2);
  CHECK(scene.sink(0).done_calls == 1);
  CHECK(scene.sink(0).status.ok());
  CHECK(scene.engine->counters().running == 0);
}

TEST_CASE("resources of a finished request are free before OnDone") {
  QueueScene scene(/*async_scheduling=*/true);
  scene.Submit(4, 3);
  scene.Submit(6, 6);
  scene.Step(3);
  // A finished request counts as running until its OnDone, although its resources are free.
  CHECK(scene.sink(0).done_calls == 0);
  CHECK(scene.engine->counters().running == 2);
  const int64_t pages = scene.engine->counters().pages_used;
  scene.Step(1);
  CHECK(scene.sink(0).done_calls == 1);
  CHECK(scene.sink(0).result.sequences.at(0).token_ids == scene.sink(0).streamed_ids.at(0));
  CHECK(scene.engine->counters().running == 1);
  CHECK(scene.engine->counters().pages_used == pages);
  // The last request gets OnDone in its own last step, because no other step follows.
  scene.Step(2);
  CHECK(scene.sink(1).done_calls == 1);
  CHECK(scene.engine->counters().running == 0);
}

}  // namespace
}  // namespace quintet
