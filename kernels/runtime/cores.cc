#include "kernels/runtime/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"

namespace quintet {
namespace {

// Returns the CPU quota of the cgroup in cores, rounded up; kUnlimited if there is none.
int QuotaCores() {
  constexpr int kUnlimited = 1 << 20;
  std::ifstream file("/sys/fs/cgroup/cpu.max");  // "max 100000" or "150000 100000"
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kUnlimited;
  const double cores = std::strtod(quota.c_str(), nullptr) / period;
  return cores > 0 ? static_cast<int>(std::ceil(cores)) : kUnlimited;
}

}  // namespace

int AvailableCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  std::set<std::string> cores;  // one list of hyper-threads per physical core
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::ifstream file(
        absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    std::string siblings;
    cores.insert(std::getline(file, siblings) ? siblings : absl::StrCat("cpu ", cpu));
  }
  return std::max(1, std::min(static_cast<int>(cores.size()), QuotaCores()));
}

std::vector<int> CpusOfPart(int part, int parts) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  const int count = static_cast<int>(cpus.size());
  if (count < parts) return cpus;
  const auto at = [&](int i) { return cpus.begin() + count * i / parts; };
  return std::vector<int>(at(part), at(part + 1));
}

void RunOnCpus(const std::vector<int>& cpus) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int cpu : cpus) CPU_SET(cpu, &wanted);
  if (!cpus.empty()) sched_setaffinity(0, sizeof(wanted), &wanted);
}

int DefaultThreads(bool on_gpu) {
  constexpr int kBesideGpu = 8;
  const int cores = AvailableCores();
  return on_gpu ? std::clamp(cores / 2, 1, kBesideGpu) : cores;
}

}  // namespace quintet
