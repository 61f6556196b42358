// Which instruction sets the CPU kernels may use: what the CPU has, capped by the environment
// variable QUINTET_CPU_ISA so that every path can be tested on one machine.
#pragma once

#include <cstdint>

namespace quintet {

// Levels of x86-64, each including those before. Elsewhere only kBest has a meaning.
enum class CpuIsa : uint8_t {
  kBaseline,    // "baseline": SSE only, no fused multiply-add
  kAvx2,        // "avx2": AVX2 and FMA
  kAvx512,      // "avx512": AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // "avx512vnni": also AVX-512 VNNI and BF16
  kBest,        // "best", or the variable is unset: also AMX
};

// Reads QUINTET_CPU_ISA at its first call and limits Highway's dynamic dispatch with it; aborts on
// a value it does not know. Every ThreadPool calls it, so it has happened before any op runs.
void ApplyCpuIsaLimit();

// For tests: another cap, effective for ops that start after it. Not thread safe.
void SetCpuIsaForTest(CpuIsa isa);

// Instructions beyond Highway's targets, under the current cap.
bool CpuHasAvx512Vnni();
bool CpuHasAvx512Bf16();
bool CpuHasAmx();  // tiles with INT8 and BF16, and the system lets this process use them
// Bytes of the second-level cache of one core; 1 MiB where the system does not tell.
int64_t CpuSecondLevelCacheBytes();
// Of the path that f32 ops take: "AVX3", "AVX2", "SSE4", ...
const char* CpuIsaName();

}  // namespace quintet
