#include "tests/models/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0};
}  // namespace

namespace quintet {
int64_t AllocationCount() { return count.load(); }
}  // namespace quintet

// Replacements of operator new and delete; the array forms (operator new[]) call them. The nothrow
// form is replaced too: a sanitizer runtime's own nothrow form would not be counted, and memory
// from it must not be passed to std::free.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++count;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(size_t bytes) {
  if (void* p = operator new(bytes, std::nothrow)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
