#include "kernels/base/out_of_memory.h"

#include "absl/strings/cord.h"

namespace quintet {

const absl::Status& OutOfMemory() {
  static const absl::Status& status = *[] {
    auto* failed = new absl::Status(absl::StatusCode::kResourceExhausted,
                                    "out of memory: an allocation failed");
    failed->SetPayload("quintet.reason", absl::Cord("OUT_OF_MEMORY"));
    return failed;
  }();
  return status;
}

}  // namespace quintet
