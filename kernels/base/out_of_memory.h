// Converts failed allocations (std::bad_alloc) to statuses, so that an allocation failure ends one
// request or one model load, never the process.
#pragma once

#include <new>

#include "absl/status/status.h"

namespace quintet {

// Returns RESOURCE_EXHAUSTED with payload "quintet.reason" = OUT_OF_MEMORY (server/errors.h). The
// first call allocates the status; later calls and copies do not allocate. Thread safe.
const absl::Status& OutOfMemory();

// Returns work(), or OutOfMemory() if work() throws std::bad_alloc. `work` returns absl::Status or
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
