// Makes allocations by operator new fail in one thread.
#pragma once

#include <cstdint>

namespace quintet {

// In the calling thread `skip` more allocations succeed and the `count` after them throw
// std::bad_alloc.
void FailAllocations(int64_t skip, int64_t count);

// Returns the number of failed allocations of all threads.
int64_t FailedAllocations();

}  // namespace quintet
