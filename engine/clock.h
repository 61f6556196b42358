// The monotonic clock, for deadlines and durations. Changes of the wall clock do not affect it.
#pragma once

#include <cstdint>
#include <functional>

namespace quintet {

// Microseconds since a fixed point in the past.
int64_t MonotonicMicros();

// The engine's source of time, replaced in tests.
using Clock = std::function<int64_t()>;

}  // namespace quintet
