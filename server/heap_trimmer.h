// Returns free heap memory to the operating system. glibc gives back only what is free at the end
// of a heap; pages in its middle that a burst of requests left stay resident until they are
// trimmed.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace quintet {

class HeapTrimmer {
 public:
  static constexpr int64_t kIntervalUs = 30'000'000;
  // Growth of the resident memory that is worth a trim, which walks the free lists under the heap's
  // lock (some milliseconds).
  static constexpr int64_t kGrowthBytes = int64_t{16} << 20;

  // The arguments are replaced in tests: `resident_bytes` measures the process, `trim` is
  // malloc_trim(3) of everything.
  HeapTrimmer();
  HeapTrimmer(std::function<int64_t()> resident_bytes, std::function<void()> trim)
      : resident_bytes_(std::move(resident_bytes)), trim_(std::move(trim)) {}

  // Called regularly by one thread with a monotonic time. Every kIntervalUs: trims if the process
  // has grown by kGrowthBytes over the least it had since the last trim.
  void Tick(int64_t now_us);

 private:
  const std::function<int64_t()> resident_bytes_;
  const std::function<void()> trim_;
  int64_t last_us_ = std::numeric_limits<int64_t>::min() / 2;
  int64_t least_bytes_ = 0;  // the first tick trims what loading the models left
};

}  // namespace quintet
