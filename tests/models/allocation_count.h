// Counts the calls of operator new in this program, so that a test can check that a function
// allocates nothing.
#pragma once

#include <cstdint>

namespace quintet {

int64_t AllocationCount();

}  // namespace quintet
