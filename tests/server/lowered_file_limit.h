// Lowers the limit of open files of the test's process, RLIMIT_NOFILE.
#pragma once

#include <sys/resource.h>

#include "tests/catch.h"

namespace quintet {

class LoweredFileLimit {
 public:
  explicit LoweredFileLimit(rlim_t files) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lowered = {files, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &lowered) == 0);
  }
  ~LoweredFileLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace quintet
