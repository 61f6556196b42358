// Lets allocations by operator new fail in a thread of this program.
#pragma once

#include <cstdint>

namespace quintet {

// In the calling thread `skip` more allocations succeed and the `count` after them throw
// std::bad_alloc.
void FailAllocations(int64_t skip, int64_t count);

// How many allocations of all threads were made to fail.
int64_t FailedAllocations();

}  // namespace quintet
