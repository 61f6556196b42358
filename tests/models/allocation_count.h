// Counts what goes through operator new in this program, so that a test can hold a call to
// allocating nothing.
#pragma once

#include <cstdint>

namespace quintet {

int64_t AllocationCount();

}  // namespace quintet
