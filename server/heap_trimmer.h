// Returns free heap memory to the operating system. glibc itself returns only what is free at the
// end of a heap; free pages in the middle, left by a burst of requests, stay resident until
// malloc_trim is called.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace quintet {

class HeapTrimmer {
 public:
  static constexpr int64_t kIntervalUs = 30'000'000;
  // Growth of the resident memory in bytes that triggers a trim. A trim walks the free lists under
  // the heap's lock, which takes some milliseconds.
  static constexpr int64_t kGrowthBytes = int64_t{16} << 20;

  // Tests replace both functions: `resident_bytes` returns the resident memory of the process in
  // bytes, `trim` calls malloc_trim(0).
  HeapTrimmer();
  HeapTrimmer(std::function<int64_t()> resident_bytes, std::function<void()> trim)
      : resident_bytes_(std::move(resident_bytes)), trim_(std::move(trim)) {}

  // Must be called regularly by one thread with a monotonic time. Every kIntervalUs it trims if the
  // resident memory exceeds its minimum since the last trim by kGrowthBytes.
  void Tick(int64_t now_us);

 private:
  const std::function<int64_t()> resident_bytes_;
  const std::function<void()> trim_;
  int64_t last_us_ = std::numeric_limits<int64_t>::min() / 2;
  int64_t least_bytes_ = 0;  // 0: the first tick trims what loading the models left
};

}  // namespace quintet
