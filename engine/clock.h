// The monotonic clock: deadlines and durations never follow the wall clock.
#pragma once

#include <cstdint>
#include <functional>

namespace quintet {

// Microseconds since some fixed point.
int64_t MonotonicMicros();

// Where the engine reads the time; tests give their own.
using Clock = std::function<int64_t()>;

}  // namespace quintet
