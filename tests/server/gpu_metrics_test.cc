#include "server/gpu_metrics.h"

#include <dlfcn.h>

#include <map>
#include <set>
#include <string>

#include "tests/catch.h"
#include "tests/nvml/fake_nvml.h"

namespace quintet {
namespace {

const GpuMonitor::Libraries kFake = {FAKE_NVML, FAKE_NVML};

// Loads the fake library, so that it stays loaded, and resets its state.
FakeNvmlState& Fake() {
  static void* const library = dlopen(FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  auto* const state = static_cast<FakeNvmlState*>(dlsym(library, "fake_nvml_state"));
  REQUIRE(state != nullptr);
  *state = {.utilization_percent = {25, 75}, .used_bytes = {100, 200}, .total_bytes = {1000, 2000}};
  return *state;
}

using Values = std::map<std::string, double>;

// The values of the metrics gpu_*, as "name gpu".
Values ValuesOf(const prometheus::Registry& registry) {
  Values values;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const auto& label : metric.label) {
        if (label.name == "gpu") values[family.name + " " + label.value] = metric.gauge.value;
      }
    }
  }
  return values;
}

TEST_CASE("Each GPU in use has metrics, whatever the order in which NVML counts them",
          "[gpu_metrics]") {
  FakeNvmlState& fake = Fake();
  prometheus::Registry registry;
  {
    GpuMetrics metrics(&registry, kFake);
    metrics.Collect({});
    CHECK(fake.opened == 0);  // not before a GPU is in use
    CHECK(ValuesOf(registry).empty());
    metrics.Collect({0, 1});
    CHECK(ValuesOf(registry) == Values{{"quintet_gpu_utilization_ratio 0", 0.75},
                                       {"quintet_gpu_memory_used_bytes 0", 200},
                                       {"quintet_gpu_memory_total_bytes 0", 2000},
                                       {"quintet_gpu_utilization_ratio 1", 0.25},
                                       {"quintet_gpu_memory_used_bytes 1", 100},
                                       {"quintet_gpu_memory_total_bytes 1", 1000}});
    fake.utilization_percent[0] = 100;
    fake.used_bytes[0] = 900;
    metrics.Collect({1});
    CHECK(ValuesOf(registry) == Values{{"quintet_gpu_utilization_ratio 1", 1},
                                       {"quintet_gpu_memory_used_bytes 1", 900},
                                       {"quintet_gpu_memory_total_bytes 1", 1000}});
    metrics.Collect({});
    CHECK(ValuesOf(registry).empty());
    CHECK(fake.opened == 1);
  }
  CHECK(fake.closed == 1);
}

TEST_CASE("A value that the driver does not report has no metric", "[gpu_metrics]") {
  FakeNvmlState& fake = Fake();
  prometheus::Registry registry;
  GpuMetrics metrics(&registry, kFake);
  fake.utilization_result = 3;  // NVML_ERROR_NOT_SUPPORTED, as with MIG
  metrics.Collect({0});
  CHECK(ValuesOf(registry) == Values{{"quintet_gpu_memory_used_bytes 0", 200},
                                     {"quintet_gpu_memory_total_bytes 0", 2000}});
  fake.utilization_result = 0;
  fake.memory_result = 15;  // NVML_ERROR_GPU_IS_LOST
  metrics.Collect({0});
  CHECK(ValuesOf(registry) == Values{{"quintet_gpu_utilization_ratio 0", 0.75}});
  metrics.Collect({2});  // no such device
  CHECK(ValuesOf(registry).empty());
}

TEST_CASE("Without the libraries there are no metrics of GPUs", "[gpu_metrics]") {
  Fake().init_result = 9;  // NVML_ERROR_DRIVER_NOT_LOADED
  CHECK(GpuMonitor::Open(kFake) == nullptr);
  Fake();
  CHECK(GpuMonitor::Open({"libquintet-none.so.1", FAKE_NVML}) == nullptr);
  CHECK(GpuMonitor::Open({FAKE_NVML, "libquintet-none.so.1"}) == nullptr);
  CHECK(GpuMonitor::Open({"libz.so.1", FAKE_NVML}) == nullptr);  // lacks the functions
  prometheus::Registry registry;
  GpuMetrics metrics(&registry, {"libquintet-none.so.1", FAKE_NVML});
  metrics.Collect({0});
  CHECK(ValuesOf(registry).empty());
}

}  // namespace
}  // namespace quintet
