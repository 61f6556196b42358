// How much memory this process may use, read from the kernel's files: memory cgroups (v1 and v2,
// the process's own and their ancestors), resource limits and physical memory.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace quintet {

struct MemoryLimit {
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  int64_t bytes = kNone;
  std::string source;  // where the limit was read, for messages; empty: there is none
};

// A process has two kinds of limits. Cgroups and physical memory bound resident pages. RLIMIT_AS
// and RLIMIT_DATA bound mappings, whether their pages are in use or not; both are compared with the
// size of the address space, which overstates RLIMIT_DATA's share a little.
struct ProcessMemory {
  struct Kind {
    MemoryLimit limit;       // the smallest of its kind
    int64_t used_bytes = 0;  // by this process now
  };
  Kind resident, address_space;
};

// Reads limits and use. Files that are absent or unreadable set no limit. `root` precedes every
// path (tests); empty: the running system.
ProcessMemory ReadProcessMemory(const std::string& root = "");

}  // namespace quintet
