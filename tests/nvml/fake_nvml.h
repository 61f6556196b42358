// The state of fake_nvml.cc, which a test finds in the loaded library under the name
// fake_nvml_state.
#pragma once

namespace quintet {

// Two GPUs in the order of NVML. CUDA numbers them the other way round.
struct FakeNvmlState {
  int init_result, utilization_result, memory_result;  // 0: success
  unsigned utilization_percent[2];
  unsigned long long used_bytes[2], total_bytes[2];
  int opened, closed;  // calls of nvmlInit_v2 and nvmlShutdown
};

}  // namespace quintet
