#include "server/process_metrics.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>

#include "engine/process_memory.h"

namespace quintet {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

double Now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

// Returns the start time of the process in seconds since the system booted; negative if unknown. It
// is field 22 of /proc/self/stat. Field 2, the name, is in parentheses and may contain spaces.
double StartAfterBoot() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(std::min(text.rfind(')'), text.size() - 1) + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) {
    if (!(fields >> field)) return -1;
  }
  return std::strtod(field.c_str(), nullptr) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

int64_t CountOpenFiles() {
  std::error_code error;
  int64_t count = 0;
  auto entry = std::filesystem::directory_iterator("/proc/self/fd", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return std::max<int64_t>(count - 1, 0);  // without that of the iteration
}

prometheus::Gauge& AddGauge(prometheus::Registry* registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry).Add({});
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  ProcessUsage usage;
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    usage.cpu_seconds = Seconds(used.ru_utime) + Seconds(used.ru_stime);
  }
  if (const double start = StartAfterBoot(); start >= 0) {
    usage.start_seconds = Now(CLOCK_REALTIME) - Now(CLOCK_BOOTTIME) + start;
  }
  const ProcessMemory memory = ReadProcessMemory();
  usage.resident_bytes = memory.resident.used_bytes;
  usage.virtual_bytes = memory.address_space.used_bytes;
  usage.open_fds = CountOpenFiles();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) usage.max_fds = static_cast<int64_t>(limit.rlim_cur);
  return usage;
}

ProcessMetrics::ProcessMetrics(prometheus::Registry* registry)
    : cpu_(prometheus::BuildCounter()
               .Name("process_cpu_seconds_total")
               .Help("User and system CPU time in seconds.")
               .Register(*registry)
               .Add({})),
      resident_(AddGauge(registry, "process_resident_memory_bytes", "Resident memory in bytes.")),
      virtual_(AddGauge(registry, "process_virtual_memory_bytes", "Virtual memory in bytes.")),
      start_(AddGauge(registry, "process_start_time_seconds",
                      "Start of the process, in seconds since 1970.")),
      open_fds_(AddGauge(registry, "process_open_fds", "Open file descriptors.")),
      max_fds_(AddGauge(registry, "process_max_fds", "Most file descriptors that may be open.")) {
  start_.Set(ReadProcessUsage().start_seconds);
}

void ProcessMetrics::Collect() {
  std::lock_guard<std::mutex> lock(mutex_);
  const ProcessUsage usage = ReadProcessUsage();
  cpu_.Increment(std::max(usage.cpu_seconds - cpu_.Value(), 0.0));
  resident_.Set(static_cast<double>(usage.resident_bytes));
  virtual_.Set(static_cast<double>(usage.virtual_bytes));
  open_fds_.Set(static_cast<double>(usage.open_fds));
  max_fds_.Set(static_cast<double>(usage.max_fds));
}

}  // namespace quintet
