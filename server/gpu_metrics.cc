#include "server/gpu_metrics.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

namespace quintet {
namespace {

// Types and functions of nvml.h and cuda.h, whose ABI is stable. All functions return 0 on success.
using NvmlDevice = struct NvmlDeviceStruct*;
struct NvmlUtilization {
  unsigned gpu, memory;  // percent
};
struct NvmlMemory {  // nvmlMemory_v2_t: `used` is without what the driver reserves
  unsigned version;
  unsigned long long total, reserved, free, used;  // bytes
};
constexpr unsigned kNvmlMemoryVersion = sizeof(NvmlMemory) | 2u << 24;
struct NvmlFunctions {
  int (*init)();
  int (*shutdown)();
  int (*handle_by_bus_id)(const char* bus_id, NvmlDevice* device);
  int (*utilization)(NvmlDevice device, NvmlUtilization* utilization);
  int (*memory)(NvmlDevice device, NvmlMemory* memory);
};
struct CudaFunctions {
  int (*init)(unsigned flags);
  int (*device)(int* device, int ordinal);
  int (*bus_id)(char* bus_id, int size, int device);
};

constexpr int kBusIdBytes = 32;

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

class NvmlMonitor final : public GpuMonitor {
 public:
  NvmlMonitor(Library nvml_library, Library cuda_library)
      : nvml_library_(std::move(nvml_library)), cuda_library_(std::move(cuda_library)) {}
  ~NvmlMonitor() override {
    if (initialized_) nvml_.shutdown();
  }

  bool Initialize() {
    void* const nvml = nvml_library_.get();
    void* const cuda = cuda_library_.get();
    const bool found =
        Find(nvml, "nvmlInit_v2", &nvml_.init) && Find(nvml, "nvmlShutdown", &nvml_.shutdown) &&
        Find(nvml, "nvmlDeviceGetHandleByPciBusId_v2", &nvml_.handle_by_bus_id) &&
        Find(nvml, "nvmlDeviceGetUtilizationRates", &nvml_.utilization) &&
        Find(nvml, "nvmlDeviceGetMemoryInfo_v2", &nvml_.memory) &&
        Find(cuda, "cuInit", &cuda_.init) && Find(cuda, "cuDeviceGet", &cuda_.device) &&
        Find(cuda, "cuDeviceGetPCIBusId", &cuda_.bus_id);
    initialized_ = found && cuda_.init(0) == 0 && nvml_.init() == 0;
    return initialized_;
  }

  GpuState Read(int ordinal) override {
    GpuState state;
    const NvmlDevice device = HandleOf(ordinal);
    if (device == nullptr) return state;
    NvmlUtilization utilization{};
    if (nvml_.utilization(device, &utilization) == 0) {
      state.utilization = std::min(utilization.gpu, 100u) / 100.0;
    }
    NvmlMemory memory{.version = kNvmlMemoryVersion};
    if (nvml_.memory(device, &memory) == 0) {
      state.memory_used_bytes = static_cast<int64_t>(memory.used);
      state.memory_total_bytes = static_cast<int64_t>(memory.total);
    }
    return state;
  }

 private:
  // CUDA and NVML number devices differently: the PCI bus id identifies the device for both.
  NvmlDevice HandleOf(int ordinal) {
    int device = 0;
    char bus_id[kBusIdBytes] = {};
    NvmlDevice handle = nullptr;
    const bool found = cuda_.device(&device, ordinal) == 0 &&
                       cuda_.bus_id(bus_id, kBusIdBytes, device) == 0 &&
                       nvml_.handle_by_bus_id(bus_id, &handle) == 0;
    return found ? handle : nullptr;
  }

  const Library nvml_library_, cuda_library_;
  NvmlFunctions nvml_{};
  CudaFunctions cuda_{};
  bool initialized_ = false;
};

template <typename Value>
void Show(const MetricFactory::Gauges& gauges, const std::optional<Value>& value) {
  if (!value.has_value()) return;
  gauges.Each([&](auto& gauge) { gauge.Set(static_cast<double>(*value)); });
}

}  // namespace

std::unique_ptr<GpuMonitor> GpuMonitor::Open(const Libraries& libraries) {
  Library nvml(dlopen(libraries.nvml.c_str(), RTLD_NOW | RTLD_LOCAL));
  Library cuda(dlopen(libraries.cuda.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (nvml == nullptr || cuda == nullptr) return nullptr;
  auto monitor = std::make_unique<NvmlMonitor>(std::move(nvml), std::move(cuda));
  if (!monitor->Initialize()) return nullptr;
  return monitor;
}

GpuMetrics::Series GpuMetrics::MakeSeries(int ordinal, const GpuState& state) const {
  Series series;
  series.factory = std::make_unique<MetricFactory>(kNoModel, /*vllm_names=*/false, registry_);
  series.shown = state;
  const prometheus::Labels gpu = {{"gpu", std::to_string(ordinal)}};
  if (state.utilization.has_value()) {
    series.utilization = series.factory->Gauge(
        "gpu_utilization_ratio",
        "Fraction of the time in which the GPU ran a kernel, of all processes, in [0, 1].", {},
        gpu);
  }
  if (state.memory_used_bytes.has_value()) {
    series.memory_used = series.factory->Gauge(
        "gpu_memory_used_bytes", "GPU memory in use in bytes, by all processes.", {}, gpu);
    series.memory_total =
        series.factory->Gauge("gpu_memory_total_bytes", "GPU memory in bytes.", {}, gpu);
  }
  return series;
}

void GpuMetrics::Collect(const std::set<int>& ordinals) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!ordinals.empty() && !std::exchange(opened_, true)) monitor_ = GpuMonitor::Open(libraries_);
  std::erase_if(series_, [&](const auto& one) { return !ordinals.contains(one.first); });
  if (monitor_ == nullptr) return;
  for (const int ordinal : ordinals) {
    const GpuState state = monitor_->Read(ordinal);
    const auto found = series_.find(ordinal);
    const bool same =
        found != series_.end() &&
        found->second.shown.utilization.has_value() == state.utilization.has_value() &&
        found->second.shown.memory_used_bytes.has_value() == state.memory_used_bytes.has_value();
    if (!same) {
      series_.erase(ordinal);  // before gauges with the same labels are made
      series_[ordinal] = MakeSeries(ordinal, state);
    }
    const Series& series = series_[ordinal];
    Show(series.utilization, state.utilization);
    Show(series.memory_used, state.memory_used_bytes);
    Show(series.memory_total, state.memory_total_bytes);
  }
}

}  // namespace quintet
