// Failed allocations (std::bad_alloc) as statuses: an allocation failure ends one request, or a
// load, never the process.
#pragma once

#include <new>

#include "absl/status/status.h"

namespace quintet {

// RESOURCE_EXHAUSTED. Its payload "quintet.reason" says OUT_OF_MEMORY (server/errors.h). Allocated
// by the first call; later calls and copies allocate nothing. Thread safe.
const absl::Status& OutOfMemory();

// work(), or OutOfMemory() when an allocation fails in it. `work` returns absl::Status or
// absl::StatusOr.
template <typename Work>
auto CatchOutOfMemory(Work work) -> decltype(work()) {
  const absl::Status& failed = OutOfMemory();
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return failed;
  }
}

}  // namespace quintet
