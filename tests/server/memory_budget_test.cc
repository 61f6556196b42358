#include "server/memory_budget.h"

#include <random>
#include <thread>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

std::shared_ptr<ConnectionBytes> Connection() { return std::make_shared<ConnectionBytes>(0); }

TEST_CASE("A reservation grows, shrinks and is released", "[memory_budget]") {
  MemoryBudget budget(1000);
  const auto connection = Connection();
  {
    MemoryReservation one(&budget, connection);
    CHECK(one.Resize(300).ok());
    CHECK(one.Resize(400).ok());
    CHECK(budget.used() == 400);
    CHECK(connection->load() == 400);
    one.Shrink(500);
    CHECK(one.bytes() == 400);
    one.Shrink(100);
    CHECK(budget.used() == 100);
  }
  CHECK(budget.used() == 0);
  CHECK(connection->load() == 0);
}

TEST_CASE("A full budget rejects a reservation without changing", "[memory_budget]") {
  MemoryBudget budget(1000);
  const auto a = Connection(), b = Connection(), c = Connection();
  MemoryReservation first(&budget, a), second(&budget, b), third(&budget, c), fourth(&budget, a);
  REQUIRE(first.Resize(650).ok());
  REQUIRE(second.Resize(250).ok());
  // The budget of 1000 bytes has 100 bytes left. Connection `a` holds 650 bytes, also 100 below its
  // limit: one connection may hold 750 bytes. A reservation of 101 bytes must therefore fail for
  // every connection.
  CHECK(absl::IsResourceExhausted(third.Resize(101)));
  CHECK(absl::IsResourceExhausted(fourth.Resize(101)));
  CHECK(third.bytes() == 0);
  CHECK(budget.used() == 900);
  CHECK(c->load() == 0);
  CHECK(third.Resize(100).ok());
  CHECK(absl::IsResourceExhausted(fourth.Resize(1)));
}

TEST_CASE("A request above the limit of any connection is invalid, not retryable",
          "[memory_budget]") {
  MemoryBudget budget(1000);
  MemoryReservation one(&budget, Connection());
  CHECK(one.Resize(750).ok());
  CHECK(absl::IsInvalidArgument(one.Resize(751)));
  CHECK(one.bytes() == 750);
}

TEST_CASE("A large call is admitted in the end, however many smaller ones come",
          "[memory_budget]") {
  constexpr int64_t kCall = 1'000'000;  // time from call to call
  int64_t now = 0;
  MemoryBudget budget(1000, [&now] { return now; });
  const auto connection = Connection();
  std::vector<std::unique_ptr<MemoryReservation>> small;  // 5 of 180 bytes, one ends in each round
  int admitted = 0;
  for (int round = 0; round < 40; ++round, now += kCall) {
    if (!small.empty()) small.erase(small.begin());
    while (small.size() < 5) {
      auto call = std::make_unique<MemoryReservation>(&budget, Connection());
      if (!call->Resize(180).ok()) break;
      small.push_back(std::move(call));
    }
    MemoryReservation large(&budget, connection);
    if (large.Resize(700).ok()) ++admitted;
    MemoryReservation tiny(&budget, Connection());  // small calls go on during a turn
    CHECK(tiny.Resize(10).ok());
  }
  CHECK(admitted > 5);
}

TEST_CASE("A turn that is not used ends, and the next one comes later", "[memory_budget]") {
  int64_t now = 0;
  MemoryBudget budget(1000, [&now] { return now; });
  const auto admits = [&budget](int64_t bytes) {
    return MemoryReservation(&budget, Connection()).Resize(bytes).ok();
  };
  MemoryReservation held(&budget, Connection());
  REQUIRE(held.Resize(400).ok());
  CHECK_FALSE(admits(700));  // begins a turn
  CHECK_FALSE(admits(200));
  CHECK(admits(10));
  now = 4'999'999;
  CHECK_FALSE(admits(200));
  now = 5'000'000;
  CHECK(admits(200));
  CHECK_FALSE(admits(700));  // no turn, because the last one was not used
  CHECK(admits(200));
  now = 30'000'000;
  CHECK_FALSE(admits(700));
  CHECK_FALSE(admits(200));
  held.Shrink(0);
  CHECK(admits(700));  // ends the turn
  REQUIRE(held.Resize(400).ok());
  CHECK(admits(200));
}

TEST_CASE("Reservations of several threads never exceed the budget", "[memory_budget]") {
  MemoryBudget budget(1000);
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      const auto connection = Connection();
      for (int round = 0; round < 2000; ++round) {
        MemoryReservation one(&budget, connection);
        for (int resize = 0; resize < 4; ++resize) {
          one.Resize(static_cast<int64_t>(random() % 600)).IgnoreError();
          if (budget.used() > budget.limit() || connection->load() > budget.connection_limit()) {
            exceeded = true;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(exceeded);
  CHECK(budget.used() == 0);
}

}  // namespace
}  // namespace quintet
