#include "engine/process_memory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/catch.h"

namespace quintet {
namespace {

// A temporary directory in place of the root directory. Tests write files such as
// /proc/self/limits below it.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (std::filesystem::temp_directory_path() / "memory_XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void Write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr char kV2Mount[] = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

TEST_CASE("the smallest memory.max of the process's cgroup and its ancestors counts") {
  const FakeRoot root;
  root.Write("/proc/self/mountinfo", kV2Mount);
  root.Write("/proc/self/cgroup", "0::/pod/container/inner\n");
  root.Write("/sys/fs/cgroup/pod/memory.max", "1000000\n");
  root.Write("/sys/fs/cgroup/pod/container/memory.max", "2000000\n");
  root.Write("/sys/fs/cgroup/pod/container/inner/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/other/memory.max", "10\n");
  root.Write("/proc/meminfo", "MemFree: 5 kB\nMemTotal:       24683644 kB\n");
  MemoryLimit limit = ReadProcessMemory(root.path()).resident.limit;
  CHECK(limit.bytes == 1000000);
  CHECK(limit.source == "/sys/fs/cgroup/pod/memory.max");
  root.Write("/sys/fs/cgroup/pod/container/inner/memory.max", "999999\n");
  limit = ReadProcessMemory(root.path()).resident.limit;
  CHECK(limit.bytes == 999999);
  CHECK(limit.source == "/sys/fs/cgroup/pod/container/inner/memory.max");
}

TEST_CASE("in a container the mount shows only the process's own cgroup") {
  const FakeRoot root;
  SECTION("with a cgroup namespace") {
    root.Write("/proc/self/mountinfo", kV2Mount);
    root.Write("/proc/self/cgroup", "0::/\n");
    root.Write("/sys/fs/cgroup/memory.max", "4096000\n");
    CHECK(ReadProcessMemory(root.path()).resident.limit.bytes == 4096000);
  }
  SECTION("without: its path begins with the mounted cgroup") {
    root.Write("/proc/self/mountinfo",
               "29 23 0:26 /docker/ab /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    root.Write("/proc/self/cgroup", "0::/docker/ab/worker\n");
    root.Write("/sys/fs/cgroup/worker/memory.max", "5000000\n");
    CHECK(ReadProcessMemory(root.path()).resident.limit.bytes == 5000000);
  }
  SECTION("a cgroup outside the mount") {
    root.Write("/proc/self/mountinfo",
               "29 23 0:26 /docker/ab /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    root.Write("/proc/self/cgroup", "0::/docker/abc\n");
    root.Write("/sys/fs/cgroup/memory.max", "6000000\n");
    CHECK(ReadProcessMemory(root.path()).resident.limit.bytes == 6000000);
  }
}

TEST_CASE("cgroup v1: the memory controller has its own hierarchy") {
  const FakeRoot root;
  root.Write("/proc/self/mountinfo",
             "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
             "35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n");
  root.Write("/proc/self/cgroup", "9:name=systemd:/x\n4:memory:/pod/c\n0::/\n");
  root.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "3000000\n");
  root.Write("/sys/fs/cgroup/memory/pod/c/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("/sys/fs/cgroup/cpu/pod/memory.limit_in_bytes", "1\n");
  const MemoryLimit limit = ReadProcessMemory(root.path()).resident.limit;
  CHECK(limit.bytes == 3000000);
  CHECK(limit.source == "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes");
}

TEST_CASE("resource limits bound the address space, physical memory the resident pages") {
  const FakeRoot root;
  root.Write("/proc/self/limits",
             "Limit                     Soft Limit           Hard Limit           Units     \n"
             "Max data size             unlimited            unlimited            bytes     \n"
             "Max address space         1073741824           unlimited            bytes     \n");
  root.Write("/proc/meminfo", "MemTotal:       1024 kB\n");
  root.Write("/proc/self/statm", "100 40 30 1 0 20 0\n");
  ProcessMemory memory = ReadProcessMemory(root.path());
  CHECK(memory.address_space.limit.bytes == 1073741824);
  CHECK(memory.address_space.limit.source == "RLIMIT_AS (ulimit -v)");
  CHECK(memory.address_space.used_bytes == 100 * sysconf(_SC_PAGESIZE));
  CHECK(memory.resident.limit.bytes == 1 << 20);
  CHECK(memory.resident.limit.source == "MemTotal of /proc/meminfo");
  CHECK(memory.resident.used_bytes == 40 * sysconf(_SC_PAGESIZE));
  root.Write("/proc/self/limits",
             "Max data size             4096                 unlimited            bytes     \n"
             "Max address space         1073741824           unlimited            bytes     \n");
  memory = ReadProcessMemory(root.path());
  CHECK(memory.address_space.limit.bytes == 4096);
  CHECK(memory.address_space.limit.source == "RLIMIT_DATA (ulimit -d)");
}

TEST_CASE("without any of the files physical memory is the only limit") {
  const FakeRoot root;
  const ProcessMemory memory = ReadProcessMemory(root.path());
  // The empty root directory stands for a system that hides /proc/meminfo, as systemd's
  // ProcSubset=pid does (deploy/systemd/quintet.service). The physical memory must then be read by
  // sysinfo(2).
  CHECK(memory.resident.limit.bytes ==
        int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)});
  CHECK(memory.resident.limit.source == "physical memory by sysinfo(2)");
  CHECK(memory.address_space.limit.bytes == MemoryLimit::kNone);
}

TEST_CASE("this system: physical memory limits, and ulimit -v is read") {
  const ProcessMemory memory = ReadProcessMemory();
  CHECK(memory.resident.limit.bytes < MemoryLimit::kNone);
  CHECK(memory.resident.used_bytes > 0);
  CHECK(memory.address_space.used_bytes > memory.resident.used_bytes);
  const pid_t child = fork();
  if (child == 0) {
    // More than the sanitizers reserve.
    const rlimit limit{rlim_t{1} << 50, RLIM_INFINITY};
    const bool set = setrlimit(RLIMIT_AS, &limit) == 0;
    const MemoryLimit read = ReadProcessMemory().address_space.limit;
    _exit(set && read.bytes == int64_t{1} << 50 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace
}  // namespace quintet
