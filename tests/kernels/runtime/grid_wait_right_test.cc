#include "kernels/runtime/grid_wait_right.h"

#include <memory>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("One object has the right to wait within a grid for each GPU", "[runtime]") {
  auto first = std::make_unique<GridWaitRight>();
  GridWaitRight second, other_gpu;
  CHECK(first->Take(3));
  CHECK(first->Take(3));
  CHECK_FALSE(second.Take(3));
  CHECK(other_gpu.Take(4));
  first.reset();
  CHECK(second.Take(3));
  CHECK_FALSE(GridWaitRight().Take(3));
}

}  // namespace
}  // namespace quintet
