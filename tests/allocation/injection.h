// Allocation failures on demand: this program replaces operator new and mmap. While armed, the n-th
// allocation of the process fails: std::bad_alloc from operator new (a null pointer from its
// nothrow forms), MAP_FAILED from mmap. Allocations in the destructor of nlohmann::json never fail.
#pragma once

#include <cstdint>

namespace quintet {

// Makes exactly one allocation fail: the n-th from now on, counted from 1.
void ArmAllocations(int64_t n);
// Stops the injection. Returns whether an allocation failed.
bool DisarmAllocations();

// While an object of this class exists, allocations of the thread that created it are not counted
// and do not fail.
class ExemptAllocations {
 public:
  ExemptAllocations();
  ~ExemptAllocations();
  ExemptAllocations(const ExemptAllocations&) = delete;
  ExemptAllocations& operator=(const ExemptAllocations&) = delete;
};

}  // namespace quintet
