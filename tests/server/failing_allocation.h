// For tests: makes memory allocations by operator new fail in a chosen thread.
#pragma once

#include <cstdint>

namespace quintet {

// Affects only the calling thread: its next `skip` allocations succeed, and the `count` allocations
// after them throw std::bad_alloc.
void FailAllocations(int64_t skip, int64_t count);

// Returns how many allocations have failed so far, in all threads together.
int64_t FailedAllocations();

}  // namespace quintet
