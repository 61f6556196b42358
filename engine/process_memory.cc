#include "engine/process_memory.h"

#include <sys/sysinfo.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace quintet {
namespace {

// Limits of this many bytes or more mean "no limit". cgroup v1 writes "no limit" as the largest
// multiple of the page size that fits a signed 64-bit number.
constexpr int64_t kUnlimited = int64_t{1} << 60;

void Lower(int64_t bytes, const std::string& source, MemoryLimit* limit) {
  if (bytes < 0 || bytes >= kUnlimited || bytes >= limit->bytes) return;
  limit->bytes = bytes;
  limit->source = source;
}

std::vector<std::string> ReadLines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::vector<std::string> lines = ReadLines(path);
  int64_t value = 0;
  if (lines.empty() || !absl::SimpleAtoi(lines[0], &value)) return std::nullopt;  // "max"
  return value;
}

struct CgroupMount {
  bool v2 = false;
  std::string root;   // cgroup path that is mounted
  std::string point;  // mount point
};

// Returns the cgroup mounts (v2, and v1 with the memory controller) in /proc/self/mountinfo
// (proc(5)). Line format: "36 35 98:0 /root /point options [fields] - type source super_options".
std::vector<CgroupMount> ReadCgroupMounts(const std::string& root) {
  std::vector<CgroupMount> mounts;
  for (const std::string& line : ReadLines(root + "/proc/self/mountinfo")) {
    const std::vector<std::string> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    if (halves.size() < 2) continue;
    const std::vector<std::string> mount = absl::StrSplit(halves[0], ' ');
    const std::vector<std::string> system = absl::StrSplit(halves[1], ' ');
    if (mount.size() < 5 || system.empty()) continue;
    if (system[0] == "cgroup2") mounts.push_back({true, mount[3], mount[4]});
    if (system[0] != "cgroup" || system.size() < 3) continue;
    for (const absl::string_view option : absl::StrSplit(system[2], ',')) {
      if (option == "memory") mounts.push_back({false, mount[3], mount[4]});
    }
  }
  return mounts;
}

// Returns the path of the process's cgroup, from the line "0::/path" (v2 hierarchy) or
// "4:memory,other:/path" (v1, memory controller) of /proc/self/cgroup.
std::string ReadCgroupPath(const std::string& root, bool v2) {
  for (const std::string& line : ReadLines(root + "/proc/self/cgroup")) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() < 3) continue;
    bool matches = v2 && fields[1].empty();
    for (const absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      matches = matches || (!v2 && controller == "memory");
    }
    if (matches) return fields[2];
  }
  return "/";
}

// Lowers `limit` to the smallest memory limit of the process's cgroup and its ancestors, as far as
// the mount shows them. If the mount does not show the process's cgroup, reads only the limit of
// the mounted cgroup itself.
void LowerToCgroup(const std::string& root, const CgroupMount& mount, MemoryLimit* limit) {
  absl::string_view below = "";
  const std::string path = ReadCgroupPath(root, mount.v2);
  absl::string_view visible = path;
  const absl::string_view top = absl::StripSuffix(mount.root, "/");
  if (absl::ConsumePrefix(&visible, top) && (visible.empty() || visible[0] == '/') &&
      path.find("/..") == std::string::npos) {
    below = absl::StripSuffix(visible, "/");
  }
  for (;;) {
    const std::string file =
        absl::StrCat(mount.point, below, mount.v2 ? "/memory.max" : "/memory.limit_in_bytes");
    if (const std::optional<int64_t> bytes = ReadNumber(root + file)) Lower(*bytes, file, limit);
    if (below.empty()) return;
    below = below.substr(0, below.rfind('/'));
  }
}

// Parses /proc/self/limits, with lines such as "Max address space unlimited unlimited bytes".
void LowerToResourceLimits(const std::string& root, MemoryLimit* limit) {
  const std::pair<absl::string_view, absl::string_view> names[] = {
      {"Max address space", "RLIMIT_AS (ulimit -v)"}, {"Max data size", "RLIMIT_DATA (ulimit -d)"}};
  for (const std::string& line : ReadLines(root + "/proc/self/limits")) {
    for (const auto& [name, source] : names) {
      absl::string_view rest = line;
      if (!absl::ConsumePrefix(&rest, name)) continue;
      std::istringstream fields{std::string(rest)};
      std::string soft;
      int64_t bytes = 0;
      if (fields >> soft && absl::SimpleAtoi(soft, &bytes)) {
        Lower(bytes, std::string(source), limit);
      }
    }
  }
}

// Lowers `limit` to the size of the physical memory. It comes from a line such as "MemTotal:
// 24683644 kB" in /proc/meminfo, or from sysinfo(2) if that file is not visible (in a service with
// ProcSubset=pid, deploy/systemd).
void LowerToPhysicalMemory(const std::string& root, MemoryLimit* limit) {
  const std::vector<std::string> lines = ReadLines(root + "/proc/meminfo");
  struct sysinfo system;
  if (lines.empty() && sysinfo(&system) == 0) {
    const auto bytes = static_cast<int64_t>(system.totalram) * system.mem_unit;
    Lower(bytes, "physical memory by sysinfo(2)", limit);
  }
  for (const std::string& line : lines) {
    absl::string_view rest = line;
    int64_t kib = 0;
    if (!absl::ConsumePrefix(&rest, "MemTotal:") || !absl::ConsumeSuffix(&rest, "kB")) continue;
    if (absl::SimpleAtoi(rest, &kib) && kib < kUnlimited / 1024) {
      Lower(kib * 1024, "MemTotal of /proc/meminfo", limit);
    }
  }
}

// Reads the memory that the process uses from /proc/self/statm: "mapped resident ...", in pages.
void ReadUse(const std::string& root, ProcessMemory* memory) {
  int64_t mapped_pages = 0, resident_pages = 0;
  std::ifstream statm(root + "/proc/self/statm");
  if (!(statm >> mapped_pages >> resident_pages)) return;
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  memory->address_space.used_bytes = mapped_pages * page_bytes;
  memory->resident.used_bytes = resident_pages * page_bytes;
}

}  // namespace

ProcessMemory ReadProcessMemory(const std::string& root) {
  ProcessMemory memory;
  for (const CgroupMount& mount : ReadCgroupMounts(root)) {
    LowerToCgroup(root, mount, &memory.resident.limit);
  }
  LowerToPhysicalMemory(root, &memory.resident.limit);
  LowerToResourceLimits(root, &memory.address_space.limit);
  ReadUse(root, &memory);
  return memory;
}

int64_t ResidentBytes() {
  ProcessMemory memory;
  ReadUse(/*root=*/"", &memory);
  return memory.resident.used_bytes;
}

}  // namespace quintet
