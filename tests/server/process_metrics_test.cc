#include "server/process_metrics.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

TEST_CASE("The use of the process follows what it does", "[process_metrics]") {
  const ProcessUsage before = ReadProcessUsage();
  CHECK(before.start_seconds <= static_cast<double>(time(nullptr)) + 1);
  CHECK(before.start_seconds > static_cast<double>(time(nullptr)) - 24 * 3600);
  CHECK(before.resident_bytes > int64_t{1} << 20);
  CHECK(before.virtual_bytes >= before.resident_bytes);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(before.max_fds == static_cast<int64_t>(limit.rlim_cur));

  const int file = open("/dev/null", O_RDONLY);
  REQUIRE(file >= 0);
  constexpr int64_t kBytes = int64_t{64} << 20;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  ProcessUsage after = ReadProcessUsage();
  CHECK(after.open_fds == before.open_fds + 1);
  CHECK(after.virtual_bytes >= before.virtual_bytes + kBytes);
  CHECK(std::abs(after.start_seconds - before.start_seconds) < 0.1);
  volatile double sum = 0;
  while (after.cpu_seconds < before.cpu_seconds + 0.02) {
    for (int i = 0; i < 100'000; ++i) sum = sum + i;
    after = ReadProcessUsage();
  }
  munmap(memory, kBytes);
  close(file);
  CHECK(ReadProcessUsage().open_fds == before.open_fds);
}

TEST_CASE("The metrics of the process have Prometheus's names", "[process_metrics]") {
  prometheus::Registry registry;
  ProcessMetrics metrics(&registry);
  metrics.Collect();
  metrics.Collect();
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    const bool counter = family.name == "process_cpu_seconds_total";
    CHECK((family.type == prometheus::MetricType::Counter) == counter);
    REQUIRE(family.metric.size() == 1);
    CHECK(family.metric[0].label.empty());
    values[family.name] = counter ? family.metric[0].counter.value : family.metric[0].gauge.value;
  }
  CHECK(values.size() == 6);
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_virtual_memory_bytes", "process_start_time_seconds",
                           "process_open_fds", "process_max_fds"}) {
    INFO(name);
    CHECK(values[name] > 0);
  }
  CHECK(std::abs(values["process_cpu_seconds_total"] - ReadProcessUsage().cpu_seconds) < 1);
}

}  // namespace
}  // namespace quintet
