#include "tools/progress.h"

#include "absl/strings/str_cat.h"
#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("the progress text has what is known") {
  CHECK(ProgressText({.lines = 10, .tokens = 100}, 4) == "10 lines, 2.5 lines/s, 25 tokens/s");
  CHECK(ProgressText({.lines = 279, .failed = 2, .tokens = 279, .total_lines = 3000}, 10) ==
        "279/3000 lines (9 %), 27.9 lines/s, 28 tokens/s, 1:38 left, 2 failed");
  CHECK(ProgressText({.lines = 1, .tokens = 0, .fraction = 0.0001}, 1) ==
        "1 lines (0 %), 1.0 lines/s, 0 tokens/s, 2:46:39 left");
  CHECK(ProgressText({.lines = 5, .total_lines = 5}, 2) ==
        "5/5 lines (100 %), 2.5 lines/s, 0 tokens/s, 0:00 left");
  CHECK(ProgressText({.total_lines = 5}, 0) == "0/5 lines (0 %), 0.0 lines/s, 0 tokens/s");
  for (int64_t lines = 0; lines <= 6000; lines += 60) {  // exact, also where lines / total is not
    const std::string text = ProgressText({.lines = lines, .total_lines = 6000}, 0);
    CHECK(text.find(absl::StrCat("(", lines / 60, " %)")) != std::string::npos);
  }
}

}  // namespace
}  // namespace quintet
