#include "kernels/runtime/cpu_features.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "hwy/highway.h"
#include "kernels/base/check.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

namespace quintet {
namespace {

std::atomic<CpuIsa> isa_cap{CpuIsa::kBest};

void SetCap(CpuIsa isa) {
  isa_cap.store(isa);
  int64_t disabled = 0;
#if defined(__x86_64__)
  if (isa < CpuIsa::kAvx512) disabled |= HWY_AVX3;
  if (isa < CpuIsa::kAvx2) disabled |= HWY_AVX2;
#endif
  hwy::DisableTargets(disabled);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

CpuIsa ParseIsa(const std::string& name) {
  if (name == "baseline") return CpuIsa::kBaseline;
  if (name == "avx2") return CpuIsa::kAvx2;
  if (name == "avx512") return CpuIsa::kAvx512;
  if (name == "avx512vnni") return CpuIsa::kAvx512Vnni;
  if (name == "best" || name.empty()) return CpuIsa::kBest;
  std::fprintf(stderr,
               "QUINTET_CPU_ISA: expected baseline, avx2, avx512, avx512vnni or best, got \"%s\"\n",
               name.c_str());
  std::exit(2);
}

#if defined(__x86_64__)
// Reads CPUID leaf 7, because not every compiler's __builtin_cpu_supports knows AMX.
bool CpuidShowsAmx() {
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
         (~edx & (kBf16 | kTile | kInt8)) == 0;
}

// Requests permission to use AMX: Linux enables the 8 KiB of tile state only for processes that
// request it.
bool AskForTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

void ApplyCpuIsaLimit() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* name = std::getenv("QUINTET_CPU_ISA");
    SetCap(ParseIsa(name == nullptr ? "" : name));
  });
}

void SetCpuIsaForTest(CpuIsa isa) {
  ApplyCpuIsaLimit();
  SetCap(isa);
}

bool CpuHasAvx512Vnni() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512vnni");
  return has && isa_cap.load(std::memory_order_relaxed) >= CpuIsa::kAvx512Vnni;
#else
  return false;
#endif
}

bool CpuHasAvx512Bf16() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bf16");
  return has && isa_cap.load(std::memory_order_relaxed) >= CpuIsa::kAvx512Vnni;
#else
  return false;
#endif
}

bool CpuHasAmx() {
#if defined(__x86_64__)
  static const bool has = CpuidShowsAmx() && AskForTiles();
  return has && isa_cap.load(std::memory_order_relaxed) >= CpuIsa::kBest;
#else
  return false;
#endif
}

int64_t CpuSecondLevelCacheBytes() {
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : int64_t{1} << 20;
}

const char* CpuIsaName() {
  const int64_t targets = hwy::SupportedTargets();
  hwy::GetChosenTarget().Update(targets);  // SupportedTargets() has reset it
  const int64_t compiled = targets & HWY_TARGETS;
  return hwy::TargetName(compiled == 0 ? HWY_STATIC_TARGET : compiled & -compiled);
}

std::string CompiledIsaNames() {
  std::vector<const char*> names;
#if defined(__x86_64__)
  names = {"AMX", "AVX512_BF16", "AVX512_VNNI"};  // amx.cc and avx512.cc of kernels/linear
#endif
  // Each target of Highway is one bit of HWY_TARGETS; the lowest set bit is the best target.
  for (int64_t left = HWY_TARGETS; left != 0; left &= left - 1) {
    names.push_back(hwy::TargetName(left & -left));
  }
  return absl::StrJoin(names, ", ");
}

std::string UsedIsaNames() {
  ApplyCpuIsaLimit();
  std::vector<const char*> names;
  if (CpuHasAmx()) names.push_back("AMX");
  if (CpuHasAvx512Bf16()) names.push_back("AVX512_BF16");
  if (CpuHasAvx512Vnni()) names.push_back("AVX512_VNNI");
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());  // as in CpuIsaName
  names.push_back(hwy::TargetName(targets & -targets));
  return absl::StrJoin(names, ", ");
}

}  // namespace quintet
