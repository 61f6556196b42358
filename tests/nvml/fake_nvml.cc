// A library in the place of libnvidia-ml.so.1 and libcuda.so.1, with the functions that
// server/gpu_metrics.cc uses and two GPUs whose state a test sets.
#include "tests/nvml/fake_nvml.h"

#include <cstdio>
#include <cstring>

namespace {

constexpr const char* kBusIds[] = {"00000000:01:00.0", "00000000:02:00.0"};  // in NVML's order

}  // namespace

extern "C" {

quintet::FakeNvmlState fake_nvml_state;

int nvmlInit_v2() {
  ++fake_nvml_state.opened;
  return fake_nvml_state.init_result;
}

int nvmlShutdown() {
  ++fake_nvml_state.closed;
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  for (size_t i = 0; i < 2; ++i) {
    if (std::strcmp(bus_id, kBusIds[i]) == 0) {
      *device = &fake_nvml_state.utilization_percent[i];
      return 0;
    }
  }
  return 6;  // NVML_ERROR_NOT_FOUND
}

int nvmlDeviceGetUtilizationRates(void* device, unsigned* gpu_and_memory) {
  gpu_and_memory[0] = *static_cast<unsigned*>(device);
  gpu_and_memory[1] = 3;
  return fake_nvml_state.utilization_result;
}

struct NvmlMemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void* device, NvmlMemoryV2* memory) {
  if (memory->version != (sizeof(NvmlMemoryV2) | 2u << 24)) {
    return 25;  // NVML_ERROR_ARGUMENT_VERSION_MISMATCH
  }
  const auto i = static_cast<unsigned*>(device) - fake_nvml_state.utilization_percent;
  memory->total = fake_nvml_state.total_bytes[i];
  memory->reserved = 7;
  memory->free = 5;
  memory->used = fake_nvml_state.used_bytes[i];
  return fake_nvml_state.memory_result;
}

int cuInit(unsigned) { return 0; }

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < 2 ? 0 : 101;  // CUDA_ERROR_INVALID_DEVICE
}

int cuDeviceGetPCIBusId(char* bus_id, int size, int device) {
  std::snprintf(bus_id, static_cast<size_t>(size), "%s", kBusIds[1 - device]);
  return 0;
}

}  // extern "C"
