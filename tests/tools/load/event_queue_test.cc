#include "tools/load/event_queue.h"

#include <map>
#include <thread>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

struct Recorder : LoadObserver {
  void OnTokens(uint64_t id, int64_t tokens, int64_t at_us) override {
    REQUIRE_FALSE(ended[id]);
    REQUIRE(at_us == ++last[id]);
    this->tokens[id] += tokens;
  }
  void OnEnd(uint64_t id, const RequestEnd& end, int64_t at_us) override {
    REQUIRE_FALSE(ended[id]);
    REQUIRE(at_us == ++last[id]);
    REQUIRE(end.reason == "reason");
    ended[id] = true;
  }
  std::map<uint64_t, int64_t> tokens, last;  // last: at_us of the last event, which counts them
  std::map<uint64_t, bool> ended;
};

TEST_CASE("event queue: passes all events of several threads, those of a thread in order") {
  constexpr int kThreads = 4, kEvents = 20'000;
  EventQueue queue;
  std::vector<std::thread> threads;
  for (uint64_t id = 0; id < kThreads; ++id) {
    threads.emplace_back([&queue, id] {
      for (int i = 1; i <= kEvents; ++i) queue.OnTokens(id, 2, i);
      RequestEnd end;
      end.reason = "reason";
      queue.OnEnd(id, end, kEvents + 1);
    });
  }
  Recorder recorder;
  size_t passed = 0;
  while (recorder.ended.size() < kThreads || passed < kThreads * (kEvents + 1)) {
    passed += queue.PassTo(&recorder, /*timeout_us=*/1'000'000);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(passed == kThreads * (kEvents + 1));
  for (uint64_t id = 0; id < kThreads; ++id) {
    CHECK(recorder.tokens[id] == 2 * kEvents);
    CHECK(recorder.ended[id]);
  }
  CHECK(queue.PassTo(&recorder, /*timeout_us=*/0) == 0);
}

}  // namespace
}  // namespace quintet
