#include "server/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <random>

#include "tests/catch.h"
#include "tests/server/calls.h"
#include "tests/server/running_server.h"

namespace quintet {
namespace {

constexpr TaskTraits kLongTask{Priority::kNormal, TaskQueue::kMaxShortBytes + 1};

// Blocks every task that calls Pass, and thereby the task's thread, until Open is called.
class Gate {
 public:
  ~Gate() { Open(); }
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++inside_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  // Waits until `tasks` tasks have called Pass.
  void AwaitInside(int tasks) {
    std::unique_lock<std::mutex> lock(mutex_);
    REQUIRE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return inside_ >= tasks; }));
  }
  int inside() {
    std::lock_guard<std::mutex> lock(mutex_);
    return inside_;
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int inside_ = 0;
  bool open_ = false;
};

// Posts a short task. Returns true if `executor` runs it within 60 s, although the tasks that
// already occupy its threads do not end.
bool RunsShortTask(Executor* executor, Priority priority) {
  auto ran = std::make_shared<std::promise<void>>();
  std::future<void> done = ran->get_future();
  executor->Post({priority, TaskQueue::kMaxShortBytes}, [ran] { ran->set_value(); });
  return done.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
}

TEST_CASE("executor: long tasks never occupy all threads", "[executor]") {
  for (const int threads : {1, 3}) {
    Gate gate;  // opened before the executor is destroyed, which waits for all tasks
    Executor executor({.name = "test", .threads = threads, .short_task_threads = 1});
    Gate* const inside = &gate;
    for (int i = 0; i < 24; ++i) executor.Post(kLongTask, [inside] { inside->Pass(); });
    gate.AwaitInside(threads);
    for (int i = 0; i < 100; ++i) {
      for (const Priority priority : {Priority::kHigh, Priority::kNormal, Priority::kLow}) {
        REQUIRE(RunsShortTask(&executor, priority));
      }
    }
    CHECK(gate.inside() == threads);
    gate.Open();
  }
}

TEST_CASE("executor: tasks start in the order of the queue", "[executor]") {
  Gate gate;
  std::vector<int> order;
  {
    Executor executor({.name = "test", .clock = [] { return 0; }});
    executor.Post([&] { gate.Pass(); });
    gate.AwaitInside(1);
    const auto post = [&](int name, Priority priority, int64_t cost_bytes) {
      executor.Post({priority, cost_bytes}, [&order, name] { order.push_back(name); });
    };
    post(0, Priority::kLow, 10);
    post(1, Priority::kNormal, 1 << 20);
    post(2, Priority::kNormal, 10);
    post(3, Priority::kHigh, 10);
    post(4, Priority::kNormal, 10);
    gate.Open();
  }
  CHECK(order == std::vector<int>{3, 2, 4, 0, 1});
}

TEST_CASE("executor: the destructor runs all queued tasks first", "[executor]") {
  std::atomic<int> ran{0};
  {
    Executor executor({.name = "test", .threads = 2, .short_task_threads = 2});
    for (int i = 0; i < 500; ++i) {
      // The executor's destructor waits for all queued tasks, and also for the tasks that these
      // post while it runs.
      executor.Post(i % 3 == 0 ? kLongTask : TaskTraits{}, [&] {
        executor.Post([&ran] { ++ran; });
        executor.Post(kLongTask, [&ran] { ++ran; });
      });
    }
  }
  CHECK(ran == 1000);
}

TEST_CASE("executor: random tasks from many threads each run once", "[executor]") {
  constexpr int kPosters = 4, kEach = 2000, kThreads = 3;
  std::vector<std::atomic<int>> runs(kPosters * kEach);
  std::atomic<int> long_now{0}, most_long{0};
  std::atomic<bool> ending{false};  // from now on any thread runs any task
  {
    Executor executor({.name = "test", .threads = kThreads, .short_task_threads = 2});
    std::vector<std::thread> posters;
    for (int poster = 0; poster < kPosters; ++poster) {
      posters.emplace_back([&, poster] {
        std::mt19937 random(poster);
        for (int i = 0; i < kEach; ++i) {
          const int task = poster * kEach + i;
          const bool is_long = random() % 2 == 0;
          const TaskTraits traits{static_cast<Priority>(random() % 3),
                                  is_long ? kLongTask.cost_bytes : 0};
          executor.Post(traits, [&, task, is_long] {
            ++runs[task];
            if (!is_long) return;
            int seen = most_long, now = ++long_now;
            while (!ending && now > seen && !most_long.compare_exchange_weak(seen, now)) {
            }
            std::this_thread::yield();
            --long_now;
          });
        }
      });
    }
    for (std::thread& poster : posters) poster.join();
    ending = true;
  }
  CHECK(std::all_of(runs.begin(), runs.end(), [](const auto& count) { return count == 1; }));
  CHECK(most_long <= kThreads);
}

TEST_CASE("A short call does not wait for texts of 1 MiB", "[executor][server]") {
  constexpr int kLongCalls = 12;
  RunningServer server([](ServerOptions* options) { options->tokenizer_threads = 1; });
  const auto tokenize = [&](int64_t bytes, v1::Priority priority) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(std::string(static_cast<size_t>(bytes), 'a'));
    request.mutable_call()->set_priority(priority);
    v1::TokenizeResponse response;
    return server.stub().Tokenize(&context, request, &response);
  };
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kLongCalls; ++i) {
    clients.emplace_back([&] {
      // The long calls have priority HIGH and the short call has priority LOW: the short call can
      // overtake them only because it is short.
      tokenize(1 << 20, v1::PRIORITY_HIGH);
      ++answered;
    });
  }
  CHECK(Eventually([&] { return server.Metric("quintet_open_calls") > kLongCalls / 2; }));
  CHECK(tokenize(5, v1::PRIORITY_LOW).ok());
  CHECK(answered < kLongCalls - 2);
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace quintet
