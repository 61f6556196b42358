// Memory limits of this process, read from kernel files: memory cgroups (v1 and v2, the process's
// own and all ancestors), resource limits and physical memory.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace quintet {

struct MemoryLimit {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t bytes = kNone;
  std::string source;  // file or rlimit, for messages; empty: no limit
};

// A process has two kinds of limits. Cgroups and physical memory limit resident pages. RLIMIT_AS
// and RLIMIT_DATA limit mapped memory, resident or not. These two limits are compared with the size
// of the address space, which is slightly more than what counts for RLIMIT_DATA.
struct ProcessMemory {
  struct Kind {
    MemoryLimit limit;       // the smallest limit of its kind
    int64_t used_bytes = 0;  // current use by this process
  };
  Kind resident, address_space;
};

// Reads limits and current use. Absent or unreadable files set no limit, except that physical
// memory then comes from sysinfo(2). `root` is prepended to every path (for tests); empty: the
// running system.
ProcessMemory ReadProcessMemory(const std::string& root = "");

// Returns the resident memory of this process in bytes; 0 if the kernel does not report it.
int64_t ResidentBytes();

}  // namespace quintet
