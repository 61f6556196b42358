#include "server/watchdog.h"

#include <random>

#include "tests/catch.h"
#include "tests/server/micros.h"

namespace quintet {
namespace {

// A Watchdog with a timeout of 3 s. The test sets its clock and the heartbeat counters of the
// engines that it watches.
struct WatchdogScene {
  // Advances the clock by `us` microseconds in one step, then ticks once.
  int64_t Tick(int64_t us) {
    now += us;
    return watchdog.Tick(heartbeats);
  }
  // Ticks every 20 ms for `us` microseconds, without any heartbeat.
  void Ticks(int64_t us) {
    for (int64_t end = now + us; now < end;) Tick(20 * kMilli);
  }

  int64_t now = 12345;
  std::vector<std::optional<uint64_t>> heartbeats = {1};
  Watchdog watchdog{3 * kSecond, [this] { return now; }};
};

TEST_CASE("watchdog: an engine without a heartbeat for the timeout is stalled", "[watchdog]") {
  WatchdogScene scene;
  scene.Tick(20 * kMilli);
  scene.Ticks(3 * kSecond - 20 * kMilli);
  CHECK_FALSE(scene.watchdog.stalled());
  scene.Ticks(20 * kMilli);
  CHECK(scene.watchdog.stalled());
  ++*scene.heartbeats[0];
  scene.Ticks(20 * kMilli);
  CHECK_FALSE(scene.watchdog.stalled());
}

TEST_CASE("watchdog: a stall of any engine is reported", "[watchdog]") {
  WatchdogScene scene;
  scene.heartbeats = {1, 1};
  for (int i = 0; i < 200; ++i) {
    ++*scene.heartbeats[0];
    scene.Tick(20 * kMilli);
  }
  CHECK(scene.watchdog.stalled());
}

TEST_CASE("watchdog: an engine is not watched before its first heartbeat", "[watchdog]") {
  WatchdogScene scene;
  scene.heartbeats = {std::nullopt, 7};
  for (int i = 0; i < 1000; ++i) {
    ++*scene.heartbeats[1];
    scene.Tick(20 * kMilli);
  }
  CHECK_FALSE(scene.watchdog.stalled());
  // The stall timeout of an engine begins with the first heartbeat of that engine.
  scene.heartbeats = {1};
  scene.Ticks(3 * kSecond);
  CHECK_FALSE(scene.watchdog.stalled());
  scene.Ticks(20 * kMilli);
  CHECK(scene.watchdog.stalled());
}

TEST_CASE("watchdog: time in which the process was suspended does not count", "[watchdog]") {
  WatchdogScene scene;
  scene.Ticks(2 * kSecond);
  CHECK(scene.Tick(3600 * kSecond) == 3600 * kSecond);
  CHECK_FALSE(scene.watchdog.stalled());
  CHECK(scene.Tick(20 * kMilli) == 0);
  // The 2 s without a heartbeat before the suspension still count. Together with one more second
  // they reach the timeout of 3 s.
  scene.Ticks(kSecond);
  CHECK(scene.watchdog.stalled());
}

TEST_CASE("watchdog: a stall is reported although every tick is late", "[watchdog]") {
  WatchdogScene scene;
  for (int i = 0; i < 31; ++i) scene.Tick(5 * kSecond);
  CHECK(scene.watchdog.stalled());
}

// Random heartbeats and random suspensions of the process. The watchdog must report a stall exactly
// when the engine has been silent for the timeout. If the process was suspended between two ticks,
// the time between them counts as only kMaxTickMicros of silence.
TEST_CASE("watchdog: random traces report exactly the stalls", "[watchdog]") {
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    WatchdogScene scene;
    scene.Tick(0);
    int64_t silent_us = 0;  // silence while the process ran
    int stalls = 0;
    for (int i = 0; i < 20'000; ++i) {
      const int64_t tick_us = 1 + static_cast<int64_t>(random() % Watchdog::kMaxTickMicros);
      const bool stopped = random() % 50 == 0;
      const bool beat = random() % 60 == 0;
      silent_us = beat ? 0 : silent_us + (stopped ? Watchdog::kMaxTickMicros : tick_us);
      if (beat) ++*scene.heartbeats[0];
      scene.Tick(stopped ? Watchdog::kMaxTickMicros + static_cast<int64_t>(random() % 100) * kSecond
                         : tick_us);
      REQUIRE(scene.watchdog.stalled() == (silent_us >= 3 * kSecond));
      stalls += scene.watchdog.stalled() ? 1 : 0;
    }
    REQUIRE(stalls > 0);
    REQUIRE(stalls < 15'000);
  }
}

}  // namespace
}  // namespace quintet
