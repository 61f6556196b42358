#include "tests/allocation/injection.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<bool> g_armed{false}, g_failed{false};
std::atomic<int64_t> g_left{0};
thread_local int t_exempt = 0;

// Returns whether the caller is the destructor of nlohmann::json, in which no allocation may fail:
// the destructor allocates a list of the values to destroy and is noexcept, so a failure would end
// the process. Of the tested code, only loading a model uses nlohmann::json.
bool InJsonDestructor() {
  ++t_exempt;
  void* frames[8];
  const int count = backtrace(frames, 8);
  bool found = false;
  for (int i = 0; i < count; ++i) {
    Dl_info info;
    found = found || (dladdr(frames[i], &info) != 0 && info.dli_sname != nullptr &&
                      std::strstr(info.dli_sname, "json_value7destroy") != nullptr);
  }
  --t_exempt;
  return found;
}

bool Fails() {
  if (!g_armed.load(std::memory_order_relaxed) || t_exempt > 0) return false;
  if (g_left.fetch_sub(1, std::memory_order_relaxed) != 1) return false;
  if (InJsonDestructor()) {
    g_left.store(1, std::memory_order_relaxed);  // fail the next allocation instead
    return false;
  }
  g_failed.store(true, std::memory_order_relaxed);
  return true;
}

void* Allocate(size_t size, size_t alignment) {
  void* const block =
      Fails() ? nullptr
      : alignment <= alignof(std::max_align_t)
          ? std::malloc(size == 0 ? 1 : size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

// The forms of operator new that are not replaced here call the replaced ones.
void* operator new(size_t size) { return Allocate(size, alignof(std::max_align_t)); }
void* operator new(size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }

extern "C" void* mmap(void* address, size_t length, int protection, int flags, int fd,
                      off_t offset) noexcept {
  if (Fails()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}

namespace quintet {

void ArmAllocations(int64_t n) {
  g_failed = false;
  g_left = n;
  g_armed = true;
}

bool DisarmAllocations() {
  g_armed = false;
  return g_failed;
}

ExemptAllocations::ExemptAllocations() { ++t_exempt; }
ExemptAllocations::~ExemptAllocations() { --t_exempt; }

}  // namespace quintet
