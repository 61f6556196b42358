// Returns free heap memory to the operating system. glibc itself returns only memory that is free
// at the end of a heap; free pages in the middle, left by a burst of requests, stay resident until
// malloc_trim is called.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace quintet {

class HeapTrimmer {
 public:
  static constexpr int64_t kIntervalUs = 10'000'000;
  // Upper bound of the wait between two trims. The wait doubles after each trim that returned less
  // than kGrowthBytes / 4 to the system: the remaining memory may be in use permanently, and later
  // trims would then return as little.
  static constexpr int64_t kMaxWaitUs = 16 * kIntervalUs;
  // Minimum growth of the resident memory for a trim. Smaller growth is not worth it: a trim walks
  // the free lists under the heap's lock, which takes some milliseconds.
  static constexpr int64_t kGrowthBytes = int64_t{16} << 20;

  HeapTrimmer();
  // Constructor for tests. `resident_bytes` replaces ResidentBytes and returns the resident memory
  // of the process in bytes; `trim` replaces malloc_trim(0).
  HeapTrimmer(std::function<int64_t()> resident_bytes, std::function<void()> trim)
      : resident_bytes_(std::move(resident_bytes)), trim_(std::move(trim)) {}

  // Must be called regularly by one thread, with a monotonic time. Calls less than kIntervalUs
  // after the last check do nothing; the others check the resident memory. The first check always
  // trims. A later one trims if the resident memory is at least kGrowthBytes above its smallest
  // value so far and the wait after the previous trim is over. One trim after growth is not enough:
  // memory that is in use during a trim and freed later stays resident.
  void Tick(int64_t now_us);

 private:
  void Trim(int64_t now_us, int64_t resident_bytes);

  const std::function<int64_t()> resident_bytes_;
  const std::function<void()> trim_;
  int64_t next_look_us_ = std::numeric_limits<int64_t>::min();
  int64_t least_bytes_ = 0;    // smallest size so far; 0: not trimmed yet
  int64_t trimmed_bytes_ = 0;  // size after the last trim
  int64_t trimmed_us_ = 0, wait_us_ = kIntervalUs;
};

}  // namespace quintet
