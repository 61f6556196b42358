#include "server/heap_trimmer.h"

#include <malloc.h>

#include <algorithm>

#include "engine/process_memory.h"

namespace quintet {

HeapTrimmer::HeapTrimmer() : HeapTrimmer(ResidentBytes, [] { malloc_trim(0); }) {}

void HeapTrimmer::Tick(int64_t now_us) {
  if (now_us < next_look_us_) return;
  next_look_us_ = now_us + kIntervalUs;
  const int64_t resident = resident_bytes_();
  if (least_bytes_ == 0) return Trim(now_us, resident);  // what loading the models left
  least_bytes_ = std::min(least_bytes_, resident);
  if (resident - least_bytes_ < kGrowthBytes) return;
  if (resident - trimmed_bytes_ >= kGrowthBytes) wait_us_ = kIntervalUs;
  if (now_us - trimmed_us_ >= wait_us_) Trim(now_us, resident);
}

void HeapTrimmer::Trim(int64_t now_us, int64_t resident_bytes) {
  trim_();
  trimmed_us_ = now_us;
  trimmed_bytes_ = resident_bytes_();
  least_bytes_ = least_bytes_ == 0 ? trimmed_bytes_ : std::min(least_bytes_, trimmed_bytes_);
  const bool useful = resident_bytes - trimmed_bytes_ >= kGrowthBytes / 4;
  wait_us_ = useful ? kIntervalUs : std::min(2 * wait_us_, kMaxWaitUs);
}

}  // namespace quintet
