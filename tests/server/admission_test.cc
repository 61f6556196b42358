#include "server/admission.h"

#include <thread>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("Admission respects both limits and releases reservations", "[admission]") {
  Admission admission(2, 100);
  Admission::Reservation first = admission.TryReserve(1, 60);
  REQUIRE(first.held());
  CHECK_FALSE(admission.TryReserve(1, 41).held());
  {
    Admission::Reservation second = admission.TryReserve(1, 40);
    CHECK(second.held());
    CHECK_FALSE(admission.TryReserve(1, 0).held());
  }
  CHECK(admission.requests() == 1);
  first.Correct(10);
  CHECK(admission.tokens() == 10);
  CHECK(admission.TryReserve(1, 90).held());
  first.Release();
  first.Release();
  CHECK(admission.requests() == 0);
  CHECK(admission.tokens() == 0);
}

TEST_CASE("An empty queue takes a request of any length", "[admission]") {
  Admission admission(4, 100);
  Admission::Reservation giant = admission.TryReserve(1, 5000);
  CHECK(giant.held());
  CHECK_FALSE(admission.TryReserve(1, 1).held());
}

TEST_CASE("LOW requests leave a quarter of the queue to others", "[admission]") {
  Admission admission(8, 1000);
  std::vector<Admission::Reservation> reservations;
  const auto reserve = [&](int64_t requests, int64_t tokens, Priority priority) {
    Admission::Reservation reservation = admission.TryReserve(requests, tokens, priority);
    const bool held = reservation.held();
    if (held) reservations.push_back(std::move(reservation));
    return held;
  };
  for (int i = 0; i < 6; ++i) CHECK(reserve(1, 1, Priority::kLow));
  CHECK_FALSE(reserve(1, 1, Priority::kLow));
  CHECK(reserve(1, 1, Priority::kNormal));
  CHECK(reserve(1, 1, Priority::kHigh));
  CHECK_FALSE(reserve(1, 1, Priority::kHigh));
  reservations.clear();
  CHECK(reserve(8, 1, Priority::kLow));  // an empty queue accepts it completely
  reservations.clear();
  CHECK(reserve(1, 700, Priority::kLow));
  CHECK_FALSE(reserve(1, 51, Priority::kLow));
  CHECK(reserve(1, 300, Priority::kNormal));
}

TEST_CASE("A class that fills the queue leaves the others their share", "[admission]") {
  Admission admission(64, 6400);
  std::vector<Admission::Reservation> reservations;
  const auto reserve = [&](Priority priority) {
    Admission::Reservation reservation = admission.TryReserve(1, 100, priority);
    const bool held = reservation.held();
    if (held) reservations.push_back(std::move(reservation));
    return held;
  };
  for (int i = 0; i < 64; ++i) REQUIRE(reserve(Priority::kHigh));
  CHECK_FALSE(reserve(Priority::kHigh));
  for (const Priority priority : {Priority::kNormal, Priority::kLow}) {
    for (int i = 0; i < 8; ++i) CHECK(reserve(priority));
    CHECK_FALSE(reserve(priority));
  }
  CHECK(admission.requests() == 80);
  CHECK(admission.requests() <= Admission::WithShares(64));
  // Requests of other classes have filled the queue. Each priority class may still use its own
  // share, an eighth of the queue: at most 8 requests and at most 800 tokens.
  reservations.erase(reservations.end() - 8, reservations.end());
  CHECK_FALSE(admission.TryReserve(1, 801, Priority::kLow).held());
  CHECK(admission.TryReserve(1, 800, Priority::kLow).held());
}

TEST_CASE("Reservations of several threads are all released", "[admission]") {
  Admission admission(8, 1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20000; ++i) {
        Admission::Reservation reservation = admission.TryReserve(1, 3 + i % 7);
        if (reservation.held() && i % 3 == 0) reservation.Correct(i % 11);
        if (admission.requests() > 8) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(admission.requests() == 0);
  CHECK(admission.tokens() == 0);
}

}  // namespace
}  // namespace quintet
