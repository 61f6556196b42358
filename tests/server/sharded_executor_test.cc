#include "server/sharded_executor.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("sharded executor: tasks of a key run in order, each once, and all before the end",
          "[sharded_executor]") {
  constexpr int kPosters = 4, kTasks = 5'000;
  // The tasks of one key come from one thread and append to one list without a lock.
  std::vector<std::vector<int>> order(kPosters);
  {
    ShardedExecutor executor("test", 3);
    CHECK(executor.threads() == 3);
    std::vector<std::thread> posters;
    for (int key = 0; key < kPosters; ++key) {
      posters.emplace_back([&executor, &list = order[key], key] {
        for (int i = 0; i < kTasks; ++i) executor.Post(key, [&list, i] { list.push_back(i); });
      });
    }
    for (std::thread& poster : posters) poster.join();
  }
  for (const std::vector<int>& list : order) {
    REQUIRE(list.size() == kTasks);
    for (int i = 0; i < kTasks; ++i) REQUIRE(list[i] == i);
  }
}

TEST_CASE("sharded executor: a blocked key delays only those of its thread", "[sharded_executor]") {
  std::atomic<bool> open{false}, ran{false};
  {
    ShardedExecutor executor("test", 2);
    executor.Post(0, [&] { open.wait(false); });
    executor.Post(1, [&] {
      ran = true;
      open = true;
      open.notify_one();
    });
  }
  CHECK(ran);
}

TEST_CASE("sharded executor: frees a task before it runs the next", "[sharded_executor]") {
  std::atomic<bool> freed{false};
  {
    ShardedExecutor executor("test", 1);
    std::atomic<bool> open{false};
    executor.Post(0, [&] { open.wait(false); });  // the next two tasks are then taken together
    auto owned = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = owned;
    executor.Post(0, [owned = std::move(owned)] {});
    executor.Post(0, [&, watched] { freed = watched.expired(); });
    open = true;
    open.notify_one();
  }
  CHECK(freed);
}

}  // namespace
}  // namespace quintet
