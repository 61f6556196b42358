// Memory limits of this process. They come from memory cgroups (v1 and v2; the process's own and
// all its ancestors), from resource limits and from the size of the physical memory.
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

// A process has two kinds of limits. Cgroups and physical memory limit its resident pages.
// RLIMIT_AS and RLIMIT_DATA limit its mapped memory, resident or not. Both of these resource limits
// are compared with the size of the address space, which is slightly more than RLIMIT_DATA counts.
struct ProcessMemory {
  struct Kind {
    MemoryLimit limit;       // the smallest limit of its kind
    int64_t used_bytes = 0;  // current use by this process
  };
  Kind resident, address_space;
};

// Reads the limits and the current use. A file that is absent or unreadable sets no limit; but if
// it is /proc/meminfo, the size of the physical memory comes from sysinfo(2). `root` is put before
// every path (for tests); empty for the running system.
ProcessMemory ReadProcessMemory(const std::string& root = "");

// Returns the resident memory of this process in bytes; 0 if the kernel does not report it.
int64_t ResidentBytes();

}  // namespace quintet
