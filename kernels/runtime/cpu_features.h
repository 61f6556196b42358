// Instruction sets that the CPU kernels may use. The CPU determines them; the environment variable
// QUINTET_CPU_ISA can limit them further, so that every code path can be tested on one machine.
#pragma once

#include <cstdint>
#include <string>

namespace quintet {

// Values of QUINTET_CPU_ISA: limits on the instruction sets of x86-64. Each level allows the
// previous levels, too; kBest sets no limit. On other architectures the value has no effect.
enum class CpuIsa : uint8_t {
  kBaseline,    // "baseline": SSE only, no fused multiply-add
  kAvx2,        // "avx2": AVX2 and FMA
  kAvx512,      // "avx512": AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // "avx512vnni": also AVX-512 VNNI and BF16
  kBest,        // "best", or the variable is unset: also AMX
};

// Reads QUINTET_CPU_ISA at its first call and limits the dynamic dispatch of Highway; exits with an
// error if the value is unknown. Every ThreadPool calls it, so it runs before any op.
void ApplyCpuIsaLimit();

// For tests: replaces the limit on instruction sets that QUINTET_CPU_ISA has set. It applies to ops
// that start after the call. Not thread safe.
void SetCpuIsaForTest(CpuIsa isa);

// Whether kernels may use AVX-512 VNNI, AVX-512 BF16 or AMX: the CPU has the instructions, and the
// limit (QUINTET_CPU_ISA or SetCpuIsaForTest) allows them. The Highway targets for which Quintet
// is compiled do not include these instructions.
bool CpuHasAvx512Vnni();
bool CpuHasAvx512Bf16();
bool CpuHasAmx();  // tiles with INT8 and BF16, and the system permits this process to use them
// Bytes of the L2 cache of one core; 1 MiB if the system does not report it.
int64_t CpuSecondLevelCacheBytes();
// Name of the Highway target that f32 ops use: "AVX3", "AVX2", "SSE4", ...
const char* CpuIsaName();
// Instruction sets that the CPU kernels are compiled for, best first:
// "AMX, AVX512_BF16, AVX512_VNNI, AVX3, AVX2, SSE4, SCALAR".
std::string CompiledIsaNames();
// The instruction sets that kernels use on this CPU under the current limit, for example
// "AVX512_VNNI, AVX3".
std::string UsedIsaNames();

}  // namespace quintet
