// Must not compile: without braces only the first statement of QT_ASSIGN_OR_RETURN would belong to
// the if. The test status_macros_unbraced compiles this file.
#include "kernels/base/status_macros.h"

absl::StatusOr<int> Half(bool exact) {
  int half = 0;
  if (exact) QT_ASSIGN_OR_RETURN(half, absl::StatusOr<int>(1));
  return half;
}
