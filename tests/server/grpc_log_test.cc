#include "server/grpc_log.h"

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr int64_t kIntervalUs = std::chrono::microseconds(kGrpcLogInterval).count();

TEST_CASE("A source location is logged once per interval, with the number of suppressed messages") {
  LocationLimiter limiter;
  CHECK(limiter.Admit("a.cc", 1, 1000) == 0);
  for (int i = 0; i < 7; ++i) CHECK_FALSE(limiter.Admit("a.cc", 1, 1000 + i).has_value());
  CHECK(limiter.Admit("a.cc", 2, 1000) == 0);
  CHECK(limiter.Admit("b.cc", 1, 1000) == 0);
  CHECK_FALSE(limiter.Admit("a.cc", 1, 1000 + kIntervalUs - 1).has_value());
  CHECK(limiter.Admit("a.cc", 1, 1000 + kIntervalUs) == 8);
  CHECK(limiter.Admit("a.cc", 1, 1000 + 2 * kIntervalUs) == 0);
}

TEST_CASE("Any number of source locations causes a bounded number of messages") {
  LocationLimiter limiter;
  int admitted = 0;
  for (int line = 0; line < 10'000; ++line) admitted += limiter.Admit("a.cc", line, 0).has_value();
  CHECK(admitted == 257);
  CHECK(limiter.Admit("a.cc", 20'000, kIntervalUs) == 10'000 - 257);
  CHECK(limiter.Admit("a.cc", 0, kIntervalUs) == 0);  // a known location keeps its own entry
}

}  // namespace
}  // namespace quintet
