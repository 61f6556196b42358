#include "tests/server/failing_allocation.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local int64_t skipped = 0, failing = 0;
std::atomic<int64_t> failed{0};

bool Fails() {
  if (failing == 0) return false;
  if (skipped > 0) {
    --skipped;
    return false;
  }
  --failing;
  ++failed;
  return true;
}

}  // namespace

namespace quintet {

void FailAllocations(int64_t skip, int64_t count) {
  skipped = skip;
  failing = count;
}

int64_t FailedAllocations() { return failed.load(); }

}  // namespace quintet

// Replacements of the global operators new and delete. The standard library's array forms (operator
// new[], operator delete[]) call them.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(size_t bytes) {
  if (void* p = operator new(bytes, std::nothrow)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
