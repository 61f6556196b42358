// Allocations that fail on demand: this program replaces operator new and mmap. While armed, the
// n-th allocation of the process fails: std::bad_alloc from operator new (a null pointer from its
// nothrow forms), MAP_FAILED from mmap. Allocations in the destructor of nlohmann::json never fail.
#pragma once

#include <cstdint>

namespace quintet {

// Makes the n-th allocation from now on fail, counted from 1, and no other.
void ArmAllocations(int64_t n);
// Back to normal. Returns whether the allocation has failed.
bool DisarmAllocations();

// While one lives, allocations of this thread are neither counted nor fail.
class ExemptAllocations {
 public:
  ExemptAllocations();
  ~ExemptAllocations();
  ExemptAllocations(const ExemptAllocations&) = delete;
  ExemptAllocations& operator=(const ExemptAllocations&) = delete;
};

}  // namespace quintet
