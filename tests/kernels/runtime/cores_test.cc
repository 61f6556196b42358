#include "kernels/runtime/cores.h"

#include <sched.h>

#include <thread>

#include "tests/catch.h"

namespace quintet {
namespace {

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  REQUIRE(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

TEST_CASE("The parts of the CPUs are disjoint and have all of them") {
  const std::vector<int> all = AllowedCpus();
  const int count = static_cast<int>(all.size());
  for (int parts = 1; parts <= count; ++parts) {
    std::vector<int> together;
    for (int part = 0; part < parts; ++part) {
      const std::vector<int> cpus = CpusOfPart(part, parts);
      CHECK(static_cast<int>(cpus.size()) >= count / parts);
      CHECK(static_cast<int>(cpus.size()) <= (count + parts - 1) / parts);
      together.insert(together.end(), cpus.begin(), cpus.end());
    }
    CHECK(together == all);
  }
  CHECK(CpusOfPart(count, count + 1) == all);  // fewer CPUs than parts
}

TEST_CASE("RunOnCpus restricts a thread and those that it starts") {
  const std::vector<int> all = AllowedCpus();
  std::vector<int> own, child;
  std::thread([&] {
    RunOnCpus({all.back()});
    own = AllowedCpus();
    std::thread([&] { child = AllowedCpus(); }).join();
    RunOnCpus({});  // no restriction
    CHECK(AllowedCpus() == own);
  }).join();
  CHECK(own == std::vector<int>{all.back()});
  CHECK(child == own);
  CHECK(AllowedCpus() == all);
}

}  // namespace
}  // namespace quintet
