#include "engine/engine_runner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "tests/catch.h"
#include "tests/engine/engine_harness.h"

namespace quintet {
namespace {

// A generate request for the fake model. Preparing it fails if its input is empty.
class TestItem : public WorkItem {
 public:
  TestItem(const Model& model, std::vector<int32_t> input, DecodingOptions options)
      : model_(model), input_(std::move(input)), options_(std::move(options)) {}

  absl::StatusOr<Request> Prepare() override {
    prepared_by = std::this_thread::get_id();
    if (input_.empty()) return absl::InvalidArgumentError("no tokens");
    Request request = GenerateRequest(model_, input_, options_);
    request.stream = stream;
    return request;
  }
  absl::Status Finish(Result taken) override {
    finished_by = std::this_thread::get_id();
    result = std::move(taken);
    return input_[0] == 39 ? absl::DataLossError("not converted") : absl::OkStatus();
  }

  Result result;
  std::thread::id prepared_by, finished_by;
  bool stream = true;

 private:
  const Model& model_;
  const std::vector<int32_t> input_;
  const DecodingOptions options_;
};

void LoadFakeModel(Session* session) {
  session->pool = std::make_unique<ThreadPool>(1);
  session->model = std::make_unique<FakeModel>(FakeOptions(), session->pool.get());
  EngineLimits limits;
  limits.max_running_sequences = 32;
  limits.max_queue_requests = RequestsInFlight(32);
  session->engine = *Engine::Create(session->model.get(), nullptr, limits);
}

// An engine whose device fails in its first step that has requests.
class FailingEngine : public Engine {
 public:
  absl::StatusOr<RequestId> Submit(Request request) override {
    if (!status_.ok()) return absl::UnavailableError("the device failed");
    sinks_.push_back(request.sink);
    return sinks_.size();
  }
  void Cancel(RequestId) override {}
  EngineCounters counters() const override { return {}; }
  absl::Status status() const override { return status_; }
  bool Step() override {
    if (!sinks_.empty()) status_ = absl::InternalError("illegal access");
    for (const std::shared_ptr<ResponseSink>& sink : sinks_) sink->OnDone(status_);
    sinks_.clear();
    return false;
  }
  void WaitForWork(int64_t) override {}

 private:
  absl::Status status_;
  std::vector<std::shared_ptr<ResponseSink>> sinks_;
};

struct RunnerTest {
  // `failing`: the last engine has a device that fails.
  explicit RunnerTest(int engines = 1, bool failing = false) {
    LoadFakeModel(&session);
    for (int i = 1; i < engines; ++i) {
      session.replicas.push_back(std::make_unique<Session>());
      LoadFakeModel(session.replicas.back().get());
    }
    if (failing) session.all().back()->engine = std::make_unique<FailingEngine>();
    runner = EngineRunner::Create(&session, 2);
  }
  std::unique_ptr<WorkItem> Item(std::vector<int32_t> input, int32_t max_new_tokens = 6,
                                 bool stream = true) const {
    auto item = std::make_unique<TestItem>(*session.model, std::move(input),
                                           DecodingOptions{.max_new_tokens = max_new_tokens});
    item->stream = stream;
    return item;
  }
  Result Alone(const std::vector<int32_t>& input) const {
    return RunAlone(FakeOptions(),
                    GenerateRequest(*session.model, input, DecodingOptions{.max_new_tokens = 6}),
                    nullptr);
  }

  Session session;
  std::unique_ptr<EngineRunner> runner;
};

std::vector<std::unique_ptr<WorkItem>> ListOf(std::unique_ptr<WorkItem> item) {
  std::vector<std::unique_ptr<WorkItem>> items;
  items.push_back(std::move(item));
  return items;
}

// Waits for all outstanding items of `call` and returns them in the order in which Pop delivers
// them.
std::vector<std::unique_ptr<WorkItem>> TakeAll(EngineCall* call,
                                               std::vector<TokenChunk>* chunks = nullptr) {
  std::vector<std::unique_ptr<WorkItem>> items;
  while (call->pending() > 0) call->Pop(10'000'000, 1, &items, chunks);
  return items;
}

const Result& ResultOf(const WorkItem& item) { return static_cast<const TestItem&>(item).result; }

}  // namespace

TEST_CASE("Results of a call have the order of its inputs, whatever fails between them") {
  RunnerTest test;
  const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
  // Push the inputs in lists of 1 to 4, because a list of one input takes another code path.
  std::vector<std::unique_ptr<WorkItem>> list;
  for (int32_t i = 0; i < 400; ++i) {
    std::vector<int32_t> input;  // empty: fails in Prepare; 39: in Finish; 40: in the engine
    if (i % 7 != 0) input = {i % 5 == 0 ? 40 : i % 11 == 0 ? 39 : 2 + i % 30, 3};
    list.push_back(test.Item(input, 1 + i % 9));
    if (list.size() > static_cast<size_t>(i / 10 % 4)) call->Push(std::exchange(list, {}));
  }
  call->Push(std::move(list));
  const std::vector<std::unique_ptr<WorkItem>> items = TakeAll(call.get());
  REQUIRE(items.size() == 400);
  for (int32_t i = 0; i < 400; ++i) {
    INFO(i);
    const WorkItem& item = *items[static_cast<size_t>(i)];
    if (i % 7 == 0 || i % 5 == 0) {
      CHECK(absl::IsInvalidArgument(item.status));
    } else if (i % 11 == 0) {
      CHECK(absl::IsDataLoss(item.status));
    } else {
      CHECK(item.status.ok());
      CHECK(ResultOf(item).sequences.size() == 1);
    }
  }
}

TEST_CASE("Several engines share the inputs of a call") {
  RunnerTest test(3);
  const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
  std::vector<std::unique_ptr<WorkItem>> list;
  for (int32_t i = 0; i < 600; ++i) list.push_back(test.Item({2 + i % 30, 3}, 1 + i % 9));
  call->Push(std::exchange(list, {}));
  const std::vector<std::unique_ptr<WorkItem>> items = TakeAll(call.get());
  REQUIRE(items.size() == 600);
  for (int32_t i = 0; i < 600; ++i) {
    INFO(i);
    REQUIRE(items[static_cast<size_t>(i)]->status.ok());
    if (1 + i % 9 != 6) continue;
    CHECK(ResultOf(*items[static_cast<size_t>(i)]).sequences[0].token_ids ==
          test.Alone({2 + i % 30, 3}).sequences[0].token_ids);
  }
  // On a busy machine the thread of an engine may begin to run only when the others have taken all
  // inputs: push more until each engine has finished some.
  const auto idle = [&] {
    const std::vector<Session*> sessions = test.session.all();
    return std::any_of(sessions.begin(), sessions.end(), [](const Session* session) {
      return session->engine->counters().finished == 0;
    });
  };
  for (int round = 0; round < 1000 && idle(); ++round) {
    for (int32_t i = 0; i < 60; ++i) list.push_back(test.Item({2 + i % 30, 3}, 9));
    call->Push(std::exchange(list, {}));
    TakeAll(call.get());
  }
  CHECK_FALSE(idle());
}

TEST_CASE("An engine whose device fails gets no further inputs while another one works") {
  RunnerTest test(2, /*failing=*/true);
  int64_t failed = 0;
  for (int round = 0; round < 20; ++round) {
    const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
    std::vector<std::unique_ptr<WorkItem>> list;
    for (int32_t i = 0; i < 50; ++i) list.push_back(test.Item({2 + i % 30, 3}));
    call->Push(std::move(list));
    for (const auto& item : TakeAll(call.get())) {
      if (item->status.ok()) continue;
      CHECK(absl::IsInternal(item->status));
      ++failed;
    }
    if (failed > 0 && round > 0) CHECK(test.session.engine->counters().finished > 0);
  }
  CHECK(failed <= MostRequests(32, 2));  // only those that it had when it failed
}

TEST_CASE("If the device of the only engine has failed, its inputs end with an error") {
  RunnerTest test(1, /*failing=*/true);
  for (int round = 0; round < 3; ++round) {
    const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
    std::vector<std::unique_ptr<WorkItem>> list;
    for (int32_t i = 0; i < 10; ++i) list.push_back(test.Item({2 + i, 3}));
    call->Push(std::move(list));
    for (const auto& item : TakeAll(call.get())) CHECK_FALSE(item->status.ok());
  }
}

TEST_CASE("Engines take equal shares of a queue") {
  const auto share = [](int64_t own, int64_t all, int64_t queued, int64_t engines) {
    return ShareOfQueue({.most = 100, .own = own}, all, queued, engines);
  };
  CHECK(share(0, 0, 30, 1) == 30);
  CHECK(share(90, 90, 30, 1) == 10);  // not more than `most`
  CHECK(share(0, 0, 30, 2) == 15);
  CHECK(share(0, 0, 1, 4) == 1);  // an idle engine always takes one
  CHECK(share(0, 60, 2, 2) == 31);
  CHECK(share(60, 60, 2, 2) == 0);
  CHECK(share(100, 150, 500, 2) == 0);
  CHECK(share(50, 150, 500, 2) == 50);
}

TEST_CASE("A single input is prepared and finished by the calling thread, a list by workers") {
  RunnerTest test;
  for (const size_t inputs : {1, 3}) {
    const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
    std::vector<std::unique_ptr<WorkItem>> list;
    for (size_t i = 0; i < inputs; ++i) list.push_back(test.Item({2, 3}));
    call->Push(std::move(list));
    const bool here = inputs == 1;
    for (const auto& item : TakeAll(call.get())) {
      CHECK((static_cast<const TestItem&>(*item).prepared_by == std::this_thread::get_id()) ==
            here);
      CHECK((static_cast<const TestItem&>(*item).finished_by == std::this_thread::get_id()) ==
            here);
    }
  }
}

TEST_CASE("Pop waits until as many items have finished as its caller wants") {
  RunnerTest test;
  const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
  std::vector<std::unique_ptr<WorkItem>> list, items;
  for (int32_t i = 0; i < 100; ++i) {  // every fifth fails before it reaches the engine
    list.push_back(test.Item(i % 5 == 0 ? std::vector<int32_t>{} : std::vector<int32_t>{2, 3}, 6,
                             /*stream=*/false));
  }
  call->Push(std::move(list));
  call->Pop(60'000'000, 70, &items, nullptr);
  CHECK(items.size() >= 70);
  call->Pop(60'000'000, 1000, &items, nullptr);  // more than are left
  CHECK(items.size() == 100);
  CHECK(call->pending() == 0);
  call->Pop(60'000'000, 1, &items, nullptr);  // nothing to wait for
  for (size_t i = 0; i < items.size(); ++i) CHECK(items[i]->status.ok() == (i % 5 != 0));
}

TEST_CASE("Calls of many threads share the engine and get their own results") {
  constexpr int32_t kThreads = 8, kCalls = 20;
  RunnerTest test;
  const auto input = [](int32_t thread, int32_t i) {
    return std::vector<int32_t>{2 + thread, 2 + i};
  };
  // Compute the expected results before the threads start: Catch2's assertions need one thread.
  std::vector<std::vector<Result>> expected(kThreads);
  for (int32_t thread = 0; thread < kThreads; ++thread) {
    for (int32_t i = 0; i < kCalls; ++i) expected[thread].push_back(test.Alone(input(thread, i)));
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int32_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int32_t i = 0; i < kCalls; ++i) {
        const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
        call->Push(ListOf(test.Item(input(thread, i))));
        std::vector<TokenChunk> chunks;
        const auto items = TakeAll(call.get(), &chunks);
        const bool same =
            items[0]->status.ok() && SameResult(ResultOf(*items[0]), expected[thread][i]);
        std::vector<int32_t> streamed;
        for (const TokenChunk& chunk : chunks) {
          streamed.insert(streamed.end(), chunk.ids.begin(), chunk.ids.end());
        }
        if (!same || streamed != ResultOf(*items[0]).sequences[0].token_ids) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(static_cast<FakeModel&>(*test.session.model).errors.empty());
}

TEST_CASE("A cancelled or dropped call leaves the engine to the others") {
  RunnerTest test;
  {
    const std::unique_ptr<EngineCall> dropped = test.runner->Begin(nullptr);
    for (int i = 0; i < 500; ++i) dropped->Push(ListOf(test.Item({2, 3}, 400)));
    std::vector<std::unique_ptr<WorkItem>> list;
    for (int i = 0; i < 500; ++i) list.push_back(test.Item({2, 3}, 400));
    dropped->Push(std::move(list));
  }
  const std::unique_ptr<EngineCall> cancelled = test.runner->Begin(nullptr);
  for (int i = 0; i < 500; ++i) cancelled->Push(ListOf(test.Item({2, 3}, 400)));
  cancelled->Cancel();
  cancelled->Push(ListOf(test.Item({2, 3})));
  const auto ended = TakeAll(cancelled.get());  // the first ones may have finished before
  REQUIRE(ended.size() == 501);
  CHECK(absl::IsCancelled(ended[499]->status));
  CHECK(absl::IsCancelled(ended[500]->status));
  const std::unique_ptr<EngineCall> call = test.runner->Begin(nullptr);
  call->Push(ListOf(test.Item({2, 3})));
  const auto items = TakeAll(call.get());
  CHECK(SameResult(ResultOf(*items[0]), test.Alone({2, 3})));
}

TEST_CASE("Close ends unfinished items, and calls may outlive the runner") {
  auto test = std::make_unique<RunnerTest>();
  const std::unique_ptr<EngineCall> call = test->runner->Begin(nullptr);
  for (int i = 0; i < 300; ++i) call->Push(ListOf(test->Item({2, 3}, 700)));
  std::vector<std::unique_ptr<WorkItem>> list;
  for (int i = 0; i < 300; ++i) list.push_back(test->Item({2, 3}, 700));
  call->Push(std::move(list));
  std::thread other([&] { test->runner->Close(); });
  test->runner->Close();
  other.join();
  call->Push(ListOf(test->Item({2, 3})));
  std::vector<std::unique_ptr<WorkItem>> items = TakeAll(call.get());
  REQUIRE(items.size() == 601);
  CHECK(absl::IsUnavailable(items.back()->status));
  test.reset();  // the engine ends what it still held
  call->Cancel();
}

TEST_CASE("A notifier learns of every call that has something to take") {
  struct Counter : CallNotifier {
    void Ready() override { ++ready; }
    std::atomic<int> ready{0};
  };
  RunnerTest test;
  const auto counter = std::make_shared<Counter>();
  const std::unique_ptr<EngineCall> call = test.runner->Begin(counter);
  call->Push(ListOf(test.Item({2, 3})));
  std::vector<std::unique_ptr<WorkItem>> items;
  for (int seen = 0; items.empty();) {
    while (counter->ready == seen) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    seen = counter->ready;
    call->Pop(0, 1, &items, nullptr);
  }
  CHECK(items[0]->status.ok());
}

}  // namespace quintet
