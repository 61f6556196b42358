#include "engine/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <span>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr int64_t kSecond = 1'000'000;

QueuedRequest Queued(uint64_t id, Priority priority, int64_t arrival_us, int64_t sequences = 1) {
  QueuedRequest request;
  request.id = id;
  request.priority = priority;
  request.arrival_us = arrival_us;
  request.sequences = sequences;
  return request;
}

constexpr AdmissionBudget kCapacity{1000, 1000, 16};

bool AllStart(uint64_t) { return true; }

std::vector<uint64_t> AdmitAll(Scheduler* scheduler, int64_t now, int64_t sequences) {
  std::vector<uint64_t> admitted;
  scheduler->Admit(now, {1000, 1000, sequences}, AllStart, &admitted);
  return admitted;
}

TEST_CASE("scheduler: requests start by priority, then by arrival") {
  Scheduler scheduler(kCapacity);
  scheduler.Add(Queued(1, Priority::kLow, 0));
  scheduler.Add(Queued(2, Priority::kNormal, 1));
  scheduler.Add(Queued(3, Priority::kHigh, 2));
  scheduler.Add(Queued(4, Priority::kNormal, 3));
  scheduler.Add(Queued(5, Priority::kHigh, 4));
  CHECK(AdmitAll(&scheduler, 10, 3) == std::vector<uint64_t>{3, 5, 2});
  CHECK(AdmitAll(&scheduler, 10, 3) == std::vector<uint64_t>{4, 1});
  CHECK(scheduler.waiting() == 0);
}

TEST_CASE("scheduler: a request that cannot start waits, and those after it wait, too") {
  Scheduler scheduler(kCapacity);
  for (uint64_t id = 1; id <= 3; ++id) scheduler.Add(Queued(id, Priority::kNormal, 0));
  std::vector<uint64_t> admitted, tried;
  const auto start = [&tried](uint64_t id) {
    tried.push_back(id);
    return id != 2;
  };
  scheduler.Admit(1, {1000, 1000, 1000}, start, &admitted);
  CHECK(admitted == std::vector<uint64_t>{1});
  CHECK(tried == std::vector<uint64_t>{1, 2});
  scheduler.Admit(2, {1000, 1000, 0}, start, &admitted);
  CHECK(tried.size() == 2);  // without room nothing starts
  CHECK(AdmitAll(&scheduler, 3, 1000) == std::vector<uint64_t>{2, 3});
}

// Queues requests of all classes and returns their ids in the order in which Admit, called at time
// `now`, admits them. Ids count from 0 for LOW, from 100 for NORMAL and from 200 for HIGH requests.
std::vector<uint64_t> OrderAt(int64_t now, int64_t low_arrival, int64_t normal_arrival) {
  Scheduler scheduler(kCapacity);
  for (uint64_t i = 0; i < 3; ++i) scheduler.Add(Queued(i, Priority::kLow, low_arrival, 4));
  for (uint64_t i = 0; i < 3; ++i)
    scheduler.Add(Queued(100 + i, Priority::kNormal, normal_arrival, 4));
  for (uint64_t i = 0; i < 4; ++i) scheduler.Add(Queued(200 + i, Priority::kHigh, now - 1, 4));
  return AdmitAll(&scheduler, now, 40);
}

TEST_CASE("scheduler: an overdue class shares admissions with the higher ones") {
  const std::vector<uint64_t> by_class = {200, 201, 202, 203, 100, 101, 102, 0, 1, 2};
  CHECK(OrderAt(10 * kSecond - 1, 0, 5 * kSecond) == by_class);
  // LOW is overdue after a wait of 10 s, NORMAL after 5 s.
  CHECK(OrderAt(10 * kSecond, 0, 5 * kSecond + 1) ==
        std::vector<uint64_t>{200, 0, 201, 1, 202, 2, 203, 100, 101, 102});
  CHECK(OrderAt(10 * kSecond, 1, 5 * kSecond) ==
        std::vector<uint64_t>{200, 100, 201, 101, 202, 102, 203, 0, 1, 2});
  CHECK(OrderAt(10 * kSecond, 0, 5 * kSecond) ==
        std::vector<uint64_t>{200, 100, 0, 201, 101, 1, 202, 102, 2, 203});
}

TEST_CASE("scheduler: shares are counted by dominant resource, not by requests") {
  Scheduler scheduler({100, 100, 100});
  QueuedRequest low = Queued(1, Priority::kLow, 0, 1);
  low.pages = 8;
  scheduler.Add(low);
  low.id = 2;
  scheduler.Add(low);
  for (uint64_t id = 10; id < 50; ++id) scheduler.Add(Queued(id, Priority::kHigh, 0, 1));
  std::vector<uint64_t> admitted;
  scheduler.Admit(20 * kSecond, {100, 100, 100}, AllStart, &admitted);
  const auto place = [&](uint64_t id) {
    return std::find(admitted.begin(), admitted.end(), id) - admitted.begin();
  };
  // A request's share is its largest fraction of any resource of the scheduler: 1 % for a HIGH
  // request, 8 % for a LOW one (8 of 100 pages). The order of admission must be: one HIGH request,
  // the first LOW request, eight HIGH requests, the second LOW request.
  CHECK(place(1) == 1);
  CHECK(place(2) == 1 + 9);
}

TEST_CASE("scheduler: the first request that does not fit holds back the others") {
  Scheduler scheduler(kCapacity);
  scheduler.Add(Queued(1, Priority::kNormal, 0, 4));
  scheduler.Add(Queued(2, Priority::kNormal, 1, 8));
  scheduler.Add(Queued(3, Priority::kHigh, 2, 1));
  scheduler.Add(Queued(4, Priority::kLow, 3, 1));
  CHECK(AdmitAll(&scheduler, 5, 8) == std::vector<uint64_t>{3, 1});
  CHECK(AdmitAll(&scheduler, 5, 7).empty());
  CHECK(scheduler.Remove(2));
  CHECK_FALSE(scheduler.Remove(2));
  CHECK(AdmitAll(&scheduler, 5, 7) == std::vector<uint64_t>{4});
}

TEST_CASE("scheduler: every budget is a limit") {
  for (int which = 0; which < 3; ++which) {
    Scheduler scheduler(kCapacity);
    QueuedRequest request = Queued(1, Priority::kNormal, 0, 2);
    request.pages = 3;
    request.encode_tokens = 4;
    scheduler.Add(request);
    request.id = 2;
    scheduler.Add(request);
    AdmissionBudget budget{8, 6, 4};
    (which == 0 ? budget.encode_tokens : which == 1 ? budget.pages : budget.sequences) -= 1;
    std::vector<uint64_t> admitted;
    scheduler.Admit(0, budget, AllStart, &admitted);
    CHECK(admitted == std::vector<uint64_t>{1});
  }
}

// Simulates a server with random arrivals. Each admitted request holds its KV cache pages and its
// sequences for a random time.
struct Simulation {
  explicit Simulation(int seed) : random(seed), scheduler({40, 60, 16}) {}

  void Arrive(int64_t now) {
    QueuedRequest r = Queued(next_id++, static_cast<Priority>(random() % 3), now, 1 + random() % 8);
    r.pages = random() % 20;
    r.encode_tokens = random() % 30;
    scheduler.Add(r);
    waiting[r.id] = r;
  }
  void Step(int64_t now) {
    for (auto it = running.begin(); it != running.end();) {
      if (it->second.second > now) {
        ++it;
        continue;
      }
      free.pages += it->second.first.pages;
      free.sequences += it->second.first.sequences;
      it = running.erase(it);
    }
    const QueuedRequest* first = scheduler.First(now);
    REQUIRE((first == nullptr) == waiting.empty());
    const uint64_t first_id = first == nullptr ? 0 : first->id;
    std::vector<uint64_t> admitted;
    scheduler.Admit(now, {40, free.pages, free.sequences}, AllStart, &admitted);
    if (!admitted.empty()) REQUIRE(admitted[0] == first_id);
    int64_t encode = 0;
    for (uint64_t id : admitted) {
      const QueuedRequest r = waiting.at(id);
      waiting.erase(id);
      encode += r.encode_tokens;
      free.pages -= r.pages;
      free.sequences -= r.sequences;
      running[id] = {r, now + static_cast<int64_t>(random() % 2000000)};
      longest_wait = std::max(longest_wait, now - r.arrival_us);
    }
    REQUIRE(encode <= 40);
    REQUIRE(free.pages >= 0);
    REQUIRE(free.sequences >= 0);
    // If no request runs and Admit has just admitted none, the queue must be empty: with all
    // resources free, its first request would fit.
    if (admitted.empty() && running.empty()) REQUIRE(waiting.empty());
    REQUIRE(scheduler.waiting() == static_cast<int64_t>(waiting.size()));
  }

  std::mt19937 random;
  Scheduler scheduler;
  uint64_t next_id = 1;
  AdmissionBudget free{40, 60, 16};
  std::map<uint64_t, QueuedRequest> waiting;
  std::map<uint64_t, std::pair<QueuedRequest, int64_t>> running;
  int64_t longest_wait = 0;
};

TEST_CASE("scheduler: random traces stay within the budgets and starve no request") {
  for (int seed = 0; seed < 5; ++seed) {
    Simulation simulation(seed);
    int64_t now = 0;
    for (int step = 0; step < 20000; ++step) {
      now += simulation.random() % 200000;
      // Requests arrive in bursts; their load is close to the capacity.
      if (simulation.random() % 100 < 35) simulation.Arrive(now);
      simulation.Step(now);
    }
    for (int step = 0; step < 20000 && !simulation.waiting.empty(); ++step) {
      simulation.Step(now += 100000);
    }
    CHECK(simulation.waiting.empty());
  }
}

// Simulates an engine under constant load. In each class either Load::waiting requests are queued
// at all times, which saturates the engine, or Load::per_second requests arrive on average. Each
// admitted request holds its KV cache pages and sequences for up to kLongest microseconds.
struct Saturated {
  static constexpr AdmissionBudget kWhole{64, 128, 16};
  static constexpr int64_t kLongest = 2 * kSecond;

  struct Load {
    int64_t waiting = 0;      // requests queued at all times
    double per_second = 0.0;  // arrivals if `waiting` is 0
    int64_t largest = 16;     // most sequences of a request
  };

  Saturated(int seed, const std::array<Load, kPriorities>& loads)
      : random(seed), loads(loads), scheduler(kWhole) {}

  void Add(int priority) {
    const int64_t sequences = 1 + static_cast<int64_t>(random() % loads[priority].largest);
    QueuedRequest r = Queued(next_id++, static_cast<Priority>(priority), now, sequences);
    r.pages = sequences + static_cast<int64_t>(random() % (7 * sequences + 1));
    r.encode_tokens = random() % 4 == 0 ? 0 : static_cast<int64_t>(random() % (4 * sequences) + 1);
    scheduler.Add(r);
    queued[r.id] = r;
    ++waiting[priority];
  }

  void Step() {
    now += static_cast<int64_t>(random() % 40'000);
    std::erase_if(running, [&](const auto& entry) {
      if (entry.first > now) return false;
      free.pages += entry.second.pages;
      free.sequences += entry.second.sequences;
      return true;
    });
    for (int priority = 0; priority < kPriorities; ++priority) {
      while (waiting[priority] < loads[priority].waiting) Add(priority);
      if (static_cast<double>(random() % 1'000'000) < loads[priority].per_second * 20'000) {
        Add(priority);
      }
    }
    std::vector<uint64_t> admitted;
    scheduler.Admit(now, free, AllStart, &admitted);
    for (uint64_t id : admitted) {
      const QueuedRequest r = queued.at(id);
      const auto priority = static_cast<size_t>(r.priority);
      queued.erase(id);
      free.pages -= r.pages;
      free.sequences -= r.sequences;
      REQUIRE(free.pages >= 0);
      REQUIRE(free.sequences >= 0);
      running.emplace_back(now + static_cast<int64_t>(random() % kLongest), r);
      longest_wait[priority] = std::max(longest_wait[priority], now - r.arrival_us);
      sequences[priority] += r.sequences;
      --waiting[priority];
    }
    for (const auto& [id, r] : queued) {
      const auto priority = static_cast<size_t>(r.priority);
      longest_wait[priority] = std::max(longest_wait[priority], now - r.arrival_us);
    }
  }

  void Run(int64_t seconds) {
    while (now < seconds * kSecond) Step();
  }

  std::mt19937 random;
  std::array<Load, kPriorities> loads;
  Scheduler scheduler;
  int64_t now = 0;
  uint64_t next_id = 1;
  AdmissionBudget free = kWhole;
  std::map<uint64_t, QueuedRequest> queued;
  std::vector<std::pair<int64_t, QueuedRequest>> running;  // end time and request
  std::array<int64_t, kPriorities> waiting = {}, longest_wait = {}, sequences = {};
};

constexpr size_t kLowClass = 0, kNormalClass = 1, kHighClass = 2;

TEST_CASE("scheduler: every class starts within its wait target at any load of higher ones") {
  constexpr int64_t kLowTarget = Scheduler::kWaitTargetMicros[kLowClass];
  constexpr int64_t kNormalTarget = Scheduler::kWaitTargetMicros[kNormalClass];
  for (int seed = 0; seed < 10; ++seed) {
    for (const int64_t deep : {1, 40, 256}) {
      for (const int64_t largest : {1, 4, 16}) {  // of the saturating requests
        Saturated high(seed, {{{0, 0.1, 16}, {0, 0.1, 16}, {deep, 0, largest}}});
        high.Run(300);
        CHECK(high.longest_wait[kLowClass] <= kLowTarget);
        CHECK(high.longest_wait[kNormalClass] <= kNormalTarget);
        CHECK(high.sequences[kHighClass] >
              high.sequences[kLowClass] + high.sequences[kNormalClass]);

        Saturated normal(seed, {{{0, 0.1, 16}, {deep, 0, largest}, {0, 0, 1}}});
        normal.Run(300);
        CHECK(normal.longest_wait[kLowClass] <= kLowTarget);

        Saturated both(seed, {{{0, 0.1, 16}, {deep, 0, largest}, {deep, 0, largest}}});
        both.Run(300);
        CHECK(both.longest_wait[kLowClass] <= kLowTarget);
        // NORMAL alone could use the whole capacity. HIGH must nevertheless start more than half as
        // many sequences as NORMAL.
        CHECK(both.sequences[kHighClass] * 2 > both.sequences[kNormalClass]);
      }
    }
  }
}

TEST_CASE("scheduler: many small requests of lower classes start in time") {
  for (int seed = 0; seed < 10; ++seed) {
    // Every 60 s, 24 LOW and 12 NORMAL requests arrive at the same time.
    Saturated burst(seed, {{{0, 0, 1}, {0, 0, 1}, {40, 0, 4}}});
    for (int i = 0; i < 5; ++i) {
      burst.Run(60 * i + 20);
      for (int j = 0; j < 24; ++j) burst.Add(kLowClass);
      for (int j = 0; j < 12; ++j) burst.Add(kNormalClass);
    }
    burst.Run(350);
    CHECK(burst.longest_wait[kLowClass] <= Scheduler::kWaitTargetMicros[kLowClass]);
    CHECK(burst.longest_wait[kNormalClass] <= Scheduler::kWaitTargetMicros[kNormalClass]);
    CHECK(burst.queued.size() <= 40);
  }
}

TEST_CASE("scheduler: HIGH requests wait briefly while overdue LOW ones share admissions") {
  for (int seed = 0; seed < 10; ++seed) {
    for (const int64_t largest : {1, 4, 16}) {
      // LOW alone exceeds the capacity, so its requests wait longer than kWaitTargetMicros.
      Saturated low(seed, {{{500, 0, largest}, {0, 0, 1}, {0, 0.5, 1}}});
      low.Run(300);
      CHECK(low.longest_wait[kLowClass] > Scheduler::kWaitTargetMicros[kLowClass]);
      CHECK(low.longest_wait[kHighClass] <= 2 * Saturated::kLongest);
    }
  }
}

constexpr Priority kLow = Priority::kLow, kNormal = Priority::kNormal, kHigh = Priority::kHigh;

// Simulates `steps` decoder steps and returns, for each, the lowest priority class that runs in it.
// `running` (the priorities of the running jobs) and `pressure` (the work that competes with them)
// are passed unchanged to every step.
std::vector<Priority> LowestOfSteps(PriorityThrottle* throttle,
                                    const std::vector<Priority>& running,
                                    const PriorityPressure& pressure, int steps) {
  std::vector<Priority> lowest;
  for (int step = 0; step < steps; ++step) {
    lowest.push_back(throttle->LowestInStep(running, pressure));
    throttle->RecordStep(*std::min_element(running.begin(), running.end()) < lowest.back());
  }
  return lowest;
}

TEST_CASE("priority throttle: lower classes are skipped for three steps and run in one") {
  PriorityThrottle throttle;
  CHECK(LowestOfSteps(&throttle, {kLow, kHigh, kNormal, kLow}, {}, 6) ==
        std::vector<Priority>{kHigh, kHigh, kHigh, kLow, kHigh, kHigh});
  // LOW has just been skipped in two steps. The throttle still counts these two after the set of
  // running classes has changed, and reaches its limit of three with one more step that skips LOW.
  CHECK(LowestOfSteps(&throttle, {kLow, kNormal}, {}, 3) ==
        std::vector<Priority>{kNormal, kLow, kNormal});
  CHECK(LowestOfSteps(&throttle, {kLow, kLow}, {}, 5) == std::vector<Priority>(5, kLow));
}

TEST_CASE(
    "priority throttle: encoding counts as activity, a request that waits for resources stops "
    "skipping") {
  PriorityThrottle throttle;
  CHECK(LowestOfSteps(&throttle, {kLow}, {.encoding = kHigh}, 4) ==
        std::vector<Priority>{kHigh, kHigh, kHigh, kLow});
  CHECK(LowestOfSteps(&throttle, {kNormal}, {.encoding = kNormal}, 2) ==
        std::vector<Priority>(2, kNormal));
  CHECK(LowestOfSteps(&throttle, {kHigh}, {.encoding = kLow}, 2) ==
        std::vector<Priority>(2, kHigh));
  CHECK(LowestOfSteps(&throttle, {kLow, kHigh}, {.encoding = kHigh, .waiting = kHigh}, 2) ==
        std::vector<Priority>(2, kLow));
  CHECK(LowestOfSteps(&throttle, {kLow, kHigh}, {.waiting = kLow}, 2) ==
        std::vector<Priority>(2, kHigh));
}

TEST_CASE("priority throttle: random traces never starve a class and never skip the highest") {
  constexpr int64_t kLongest = PriorityThrottle::kMaxSkippedSteps;
  for (int seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto any = [&] { return static_cast<Priority>(random() % 3); };
    const auto maybe = [&](int of) {
      return random() % of == 0 ? std::optional<Priority>(any()) : std::nullopt;
    };
    PriorityThrottle throttle;
    std::vector<std::pair<Priority, int64_t>> running;  // (class, consecutive skipped steps)
    int64_t skipped_steps = 0;                          // consecutive steps that skip a class
    for (int step = 0; step < 5000; ++step) {
      if (random() % 4 == 0) std::erase_if(running, [&](const auto&) { return random() % 3 == 0; });
      while (running.empty() || random() % 3 == 0) running.emplace_back(any(), 0);
      const PriorityPressure pressure{maybe(6), maybe(6)};
      std::vector<Priority> classes;
      for (const auto& [priority, skipped] : running) classes.push_back(priority);
      const auto [low, high] = std::minmax_element(classes.begin(), classes.end());
      const Priority lowest = throttle.LowestInStep(classes, pressure);
      bool any_skipped = false;
      for (auto& [priority, skipped] : running) {
        skipped = priority < lowest ? skipped + 1 : 0;
        REQUIRE(skipped <= kLongest);
        any_skipped = any_skipped || priority < lowest;
      }
      const bool mixed = *low < std::max(*high, pressure.encoding.value_or(*high));
      const bool called = pressure.waiting.has_value() && *pressure.waiting > *low;
      REQUIRE(any_skipped == (mixed && !called && skipped_steps < kLongest));
      if (lowest > *high) REQUIRE(lowest == pressure.encoding);
      throttle.RecordStep(any_skipped);
      skipped_steps = any_skipped ? skipped_steps + 1 : 0;
    }
  }
}

TEST_CASE("prefill budget: it is given first come first served and used as far as possible") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int64_t> remaining(random() % 6), share;
    int64_t total = 0;
    for (int64_t& r : remaining) total += r = random() % 10;
    share.resize(remaining.size());
    const int64_t budget = random() % 30;
    SplitPrefillBudget(budget, remaining, std::span(share));
    int64_t dealt = 0;
    for (size_t i = 0; i < share.size(); ++i) {
      REQUIRE((share[i] >= 0 && share[i] <= remaining[i]));
      if (share[i] > 0 && i > 0) REQUIRE(share[i - 1] == remaining[i - 1]);
      dealt += share[i];
    }
    REQUIRE(dealt == std::min(budget, total));
  }
}

}  // namespace
}  // namespace quintet
