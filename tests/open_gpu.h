// Opens the GPU of a test. A test that needs one is skipped where there is none: ctest recognises a
// skipped test by the word "skipped" in its output (SKIP_REGULAR_EXPRESSION in CMakeLists.txt).
#pragma once

#include <memory>
#include <utility>

#include "kernels/runtime/device.h"
#include "tests/catch.h"

namespace quintet {

// Opens the first GPU. If there is none, prints a warning that begins with "skipped" and returns
// null.
inline std::unique_ptr<Device> OpenGpuOrSkip() {
  auto device = Device::Open(0);
  if (device.ok()) return *std::move(device);
  WARN("skipped: " << device.status().message());
  return nullptr;
}

}  // namespace quintet
