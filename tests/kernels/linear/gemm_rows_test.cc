#include "kernels/linear/gemm_rows.h"

#include <algorithm>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("classes of row counts: few, ascending, at most an eighth apart") {
  int64_t classes = 0, last = 0;
  for (int64_t rows = 1; rows <= 20000; ++rows) {
    const int64_t largest = RoundUpGemmRows(rows);
    REQUIRE(largest >= rows);
    REQUIRE(largest - rows < GemmRowStep(rows));
    REQUIRE(8 * GemmRowStep(rows) <= std::max<int64_t>(rows, 8));
    REQUIRE(RoundUpGemmRows(largest) == largest);
    REQUIRE(largest >= last);
    classes += largest != last ? 1 : 0;
    last = largest;
  }
  CHECK(classes < 110);
}

TEST_CASE("padded rows stay within the memory, and small numbers are not padded") {
  CHECK(PaddedGemmRows(0, 4096) == 0);
  CHECK(PaddedGemmRows(33, 4096) == 33);
  CHECK(PaddedGemmRows(255, 4096) == 255);
  CHECK(PaddedGemmRows(256, 4096) == 256);
  CHECK(PaddedGemmRows(257, 4096) == 288);
  CHECK(PaddedGemmRows(2049, 4096) == 2304);
  CHECK(PaddedGemmRows(2049, 2100) == 2100);
  CHECK(PaddedGemmRows(2049, 2000) == 2049);  // the rows that are needed are always there
}

}  // namespace
}  // namespace quintet
