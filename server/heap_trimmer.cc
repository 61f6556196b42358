#include "server/heap_trimmer.h"

#include <malloc.h>

#include <algorithm>

#include "engine/process_memory.h"

namespace quintet {

HeapTrimmer::HeapTrimmer() : HeapTrimmer(ResidentBytes, [] { malloc_trim(0); }) {}

void HeapTrimmer::Tick(int64_t now_us) {
  if (now_us - last_us_ < kIntervalUs) return;
  last_us_ = now_us;
  const int64_t resident = resident_bytes_();
  if (resident - least_bytes_ < kGrowthBytes) {
    least_bytes_ = std::min(least_bytes_, resident);
    return;
  }
  trim_();
  least_bytes_ = resident_bytes_();
}

}  // namespace quintet
