// Lengths of time in microseconds.
#pragma once

#include <cstdint>

namespace quintet {

constexpr int64_t kMilli = 1000, kSecond = 1'000'000;

}  // namespace quintet
