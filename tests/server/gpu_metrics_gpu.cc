// The state of a real GPU through the libraries of its driver.
#include "server/gpu_metrics.h"
#include "tests/catch.h"
#include "tests/open_gpu.h"

namespace quintet {
namespace {

TEST_CASE("NVML reports the memory and the utilization of the first GPU", "[gpu_metrics]") {
  const std::unique_ptr<Device> device = OpenGpuOrSkip();
  if (device == nullptr) return;
  const std::unique_ptr<GpuMonitor> monitor = GpuMonitor::Open({});
  REQUIRE(monitor != nullptr);
  const int64_t free_bytes = device->free_bytes();
  const GpuState state = monitor->Read(device->ordinal());
  REQUIRE(state.memory_used_bytes.has_value());
  REQUIRE(state.memory_total_bytes.has_value());
  CHECK(*state.memory_used_bytes > 0);
  CHECK(*state.memory_used_bytes < *state.memory_total_bytes);
  CHECK(*state.memory_total_bytes >= free_bytes);
  if (state.utilization.has_value()) {  // MIG reports none
    CHECK(*state.utilization >= 0);
    CHECK(*state.utilization <= 1);
  }
}

}  // namespace
}  // namespace quintet
