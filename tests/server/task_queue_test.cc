#include "server/task_queue.h"

#include <algorithm>
#include <random>

#include "tests/catch.h"
#include "tests/server/micros.h"

namespace quintet {
namespace {

constexpr int64_t kShortBytes = TaskQueue::kMaxShortBytes, kLongBytes = kShortBytes + 1,
                  kMiB = 1 << 20;
constexpr Priority kLow = Priority::kLow, kNormal = Priority::kNormal, kHigh = Priority::kHigh;

// A TaskQueue whose tasks are named by numbers: the first task that was pushed has the name 0, the
// next one 1, and so on. A task that runs stores its name in `latest`.
struct TaskScene {
  void Push(int64_t now_us, Priority priority, int64_t cost_bytes) {
    queue.Push(now_us, {priority, cost_bytes}, [this, name = pushed++] { latest = name; });
  }
  // Removes and runs the next task. Returns its number in the order of Push; -1: there is no task.
  int Pop(bool short_only = false) {
    const TaskQueue::Task task = queue.Pop(short_only);
    if (task == nullptr) return -1;
    task();
    return latest;
  }
  std::vector<int> PopAll() {
    std::vector<int> names;
    while (!queue.empty(false)) names.push_back(Pop());
    return names;
  }

  TaskQueue queue;
  int pushed = 0, latest = -1;
};

TEST_CASE("task queue: equal tasks start in order of arrival", "[task_queue]") {
  TaskScene scene;
  for (int i = 0; i < 100; ++i) scene.Push(i / 7, kNormal, 100);
  const std::vector<int> order = scene.PopAll();
  CHECK(order.size() == 100);
  CHECK(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("task queue: higher classes and shorter tasks start first", "[task_queue]") {
  TaskScene scene;
  scene.Push(0, kLow, 10);
  scene.Push(0, kNormal, 10);
  scene.Push(0, kHigh, kMiB / 2);
  scene.Push(0, kHigh, 10);
  scene.Push(0, kNormal, kMiB / 4);
  CHECK(scene.PopAll() == std::vector<int>{3, 2, 1, 4, 0});
}

TEST_CASE("task queue: a thread for short tasks never gets a long one", "[task_queue]") {
  TaskScene scene;
  scene.Push(0, kHigh, kLongBytes);
  CHECK(scene.queue.empty(true));
  CHECK_FALSE(scene.queue.empty(false));
  CHECK(scene.Pop(true) == -1);
  scene.Push(0, kLow, kShortBytes);
  CHECK_FALSE(scene.queue.empty(true));
  CHECK(scene.Pop(true) == 1);
  CHECK(scene.Pop(true) == -1);
  CHECK(scene.Pop() == 0);
  CHECK(scene.Pop() == -1);
}

TEST_CASE("task queue: a large LOW task is overtaken only for a while", "[task_queue]") {
  TaskScene scene;
  scene.Push(0, kLow, kMiB);
  const int64_t delay = TaskQueue::DelayMicros({kLow, kMiB});
  CHECK(delay > 6 * kSecond);
  CHECK(delay < 7 * kSecond);
  int64_t now = 0;
  // Each round adds two small HIGH tasks and removes one task, so HIGH tasks are always waiting.
  // The LOW task, which was added first, must still be removed after it has waited for its delay
  // (DelayMicros) and before it has waited three times as long.
  for (int popped = -1; popped != 0;) {
    now += kSecond / 10;
    scene.Push(now, kHigh, 10);
    scene.Push(now, kHigh, 10);
    popped = scene.Pop();
    REQUIRE(now < 3 * delay);
  }
  CHECK(now > delay);
}

TEST_CASE("task queue: costs outside the range are clamped", "[task_queue]") {
  constexpr int64_t kMax = TaskQueue::kMaxCostBytes;
  CHECK(TaskQueue::DelayMicros({kHigh, -1}) == 0);
  CHECK(TaskQueue::DelayMicros({kHigh, INT64_MAX}) == TaskQueue::DelayMicros({kHigh, kMax}));
}

TEST_CASE("task queue: no task of a random trace is overtaken for too long", "[task_queue]") {
  struct Waiting {
    int name;
    int64_t arrival_us;
    TaskTraits traits;
  };
  for (int seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    TaskScene scene;
    std::vector<Waiting> waiting;
    int64_t now = 0;
    const auto precedes = [](const Waiting& a, const Waiting& b) {
      const auto smaller = [](const TaskTraits& x, const TaskTraits& y) {
        return x.priority >= y.priority && x.cost_bytes <= y.cost_bytes;
      };
      // Returns whether the queue must remove `a` before `b`. There are two such cases:
      // - `a` arrived before or together with `b`, its priority is the same or higher, and its cost
      //   is the same or lower.
      // - When `b` arrived, `a` had already waited longer than the delay that its priority and cost
      //   give it (DelayMicros).
      return (a.arrival_us <= b.arrival_us && smaller(a.traits, b.traits)) ||
             a.arrival_us + TaskQueue::DelayMicros(a.traits) < b.arrival_us;
    };
    for (int i = 0; i < 5000; ++i) {
      now += static_cast<int64_t>(random() % kSecond / 4);
      if (random() % 100 < (i < 2500 ? 60 : 45)) {
        const TaskTraits traits{static_cast<Priority>(random() % 3),
                                random() % 3 == 0 ? static_cast<int64_t>(random() % (5 * kMiB))
                                                  : static_cast<int64_t>(random() % kShortBytes)};
        waiting.push_back({scene.pushed, now, traits});
        scene.Push(now, traits.priority, traits.cost_bytes);
        continue;
      }
      const bool short_only = random() % 2 == 0;
      const auto eligible = [&](const Waiting& task) {
        return !short_only || task.traits.cost_bytes <= kShortBytes;
      };
      const bool any = std::any_of(waiting.begin(), waiting.end(), eligible);
      REQUIRE(scene.queue.empty(short_only) == !any);
      const int name = scene.Pop(short_only);
      if (!any) {
        REQUIRE(name == -1);
        continue;
      }
      const auto task = std::find_if(waiting.begin(), waiting.end(),
                                     [name](const Waiting& w) { return w.name == name; });
      REQUIRE(task != waiting.end());
      REQUIRE(eligible(*task));
      for (const Waiting& other : waiting) {
        if (other.name < name && eligible(other)) REQUIRE_FALSE(precedes(other, *task));
      }
      waiting.erase(task);
    }
  }
}

}  // namespace
}  // namespace quintet
