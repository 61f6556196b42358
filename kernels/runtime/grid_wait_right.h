// If the CTAs of a kernel wait for each other (linear/split_k_each_lora.cuh), all of them must be
// resident at once. Two such kernels that run on one GPU at the same time could each occupy SMs
// that the other needs, and both would wait forever. Therefore at most one stream of the process
// may launch such kernels on a GPU.
#pragma once

#include <optional>

namespace quintet {

// The right to launch kernels whose CTAs wait for each other, on one GPU. At most one object per
// GPU holds it, until that object is destroyed. Different threads may use different objects at the
// same time.
class GridWaitRight {
 public:
  GridWaitRight() = default;
  ~GridWaitRight();
  GridWaitRight(const GridWaitRight&) = delete;
  GridWaitRight& operator=(const GridWaitRight&) = delete;

  // Acquires the right for GPU `ordinal` if no other object holds it. Returns whether this object
  // now holds it. All calls must pass the same ordinal.
  bool Take(int ordinal);

 private:
  std::optional<int> ordinal_;  // set: has the right
};

}  // namespace quintet
