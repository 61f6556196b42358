// Kernels whose CTAs wait for others of their grid (linear/split_k_each_lora.cuh) need all CTAs
// resident at once. Two of them at the same time on a GPU could each hold the SMs that the other
// needs and wait forever. So one stream of a process at most may launch such kernels on a GPU.
#pragma once

#include <optional>

namespace quintet {

// The right to launch them. One object has it for each GPU, until it is destroyed. Thread-safe with
// respect to other objects.
class GridWaitRight {
 public:
  GridWaitRight() = default;
  ~GridWaitRight();
  GridWaitRight(const GridWaitRight&) = delete;
  GridWaitRight& operator=(const GridWaitRight&) = delete;

  // Whether this object has the right for the GPU with this ordinal; takes it if no object has it.
  // All calls must name the same GPU.
  bool Take(int ordinal);

 private:
  std::optional<int> ordinal_;  // set: has the right
};

}  // namespace quintet
