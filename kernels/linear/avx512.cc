// CPU GEMM kernels with AVX-512 VNNI and AVX-512 BF16, for which Highway 1.0.3 has no targets. A
// kernel multiplies rows of x by one panel, the packed weights of 32 output channels. See
// linear_cpu.h.
#include "hwy/highway.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/runtime/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

HWY_PUSH_ATTRIBUTES("avx2,fma,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace quintet::vnni {

#include "kernels/linear/tile-inl.h"

struct I8Op {
  using V = __m512i;
  using W = __m512i;
  using X = __m512i;
  static constexpr int kVectors = 2;
  static constexpr int kMaxRows = 12;
  static constexpr int Columns(int) { return 2; }
  static HWY_INLINE V Zero() { return _mm512_setzero_si512(); }
  static HWY_INLINE V Load(const char* p) { return _mm512_load_si512(p); }
  static HWY_INLINE void Store(V v, char* p) { _mm512_store_si512(p, v); }
  static HWY_INLINE W LoadWeights(const char* p) { return _mm512_load_si512(p); }
  static HWY_INLINE void KeepInRegister(W& w) { asm("" : "+v"(w)); }
  static HWY_INLINE X Broadcast(const char* p) {
    int32_t unit;
    std::memcpy(&unit, p, 4);
    return _mm512_set1_epi32(unit);
  }
  static HWY_INLINE V MulAdd(X x, W w, V sum) { return _mm512_dpbusd_epi32(sum, x, w); }
};

void Panel(const cpu::PanelGemm& p) { RunPanelGemm<I8Op>(p); }

}  // namespace quintet::vnni
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx2,fma,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace quintet::bf16 {

#include "kernels/linear/tile-inl.h"

struct Bf16Op {
  using V = __m512;
  using W = __m512i;
  using X = __m512i;
  static constexpr int kVectors = 2;
  static constexpr int kMaxRows = 12;
  static constexpr int Columns(int) { return 2; }
  static HWY_INLINE V Zero() { return _mm512_setzero_ps(); }
  static HWY_INLINE V Load(const char* p) {
    return _mm512_load_ps(reinterpret_cast<const float*>(p));
  }
  static HWY_INLINE void Store(V v, char* p) { _mm512_store_ps(reinterpret_cast<float*>(p), v); }
  static HWY_INLINE W LoadWeights(const char* p) { return _mm512_load_si512(p); }
  static HWY_INLINE void KeepInRegister(W& w) { asm("" : "+v"(w)); }
  static HWY_INLINE X Broadcast(const char* p) {
    int32_t unit;
    std::memcpy(&unit, p, 4);
    X units = _mm512_set1_epi32(unit);
#if defined(__clang__)
    // This empty asm statement keeps the broadcast in a register of its own: Clang 16 crashes when
    // it folds the broadcast into the bf16 dot product instruction.
    asm("" : "+v"(units));
#endif
    return units;
  }
  static HWY_INLINE V MulAdd(X x, W w, V sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w));
  }
};

void Panel(const cpu::PanelGemm& p) { RunPanelGemm<Bf16Op>(p); }

// Rounds to bf16 and flushes denormals to zero, as the bf16 dot product instructions do with their
// inputs.
void RoundValues(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 valid = n - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (n - i)) - 1);
    const int64_t padded = (n - i + 1) / 2 * 2;
    const __mmask16 written = padded >= 16 ? 0xffff : static_cast<__mmask16>((1u << padded) - 1);
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(valid, x + i));
    _mm256_mask_storeu_epi16(y + i, written, reinterpret_cast<__m256i>(rounded));
  }
}

}  // namespace quintet::bf16
HWY_POP_ATTRIBUTES

namespace quintet::cpu {
PanelKernel VnniPanelKernel() {
  if (!CpuHasAvx512Vnni()) return {};
  return {&vnni::Panel, vnni::I8Op::kMaxRows, 1};
}
PanelKernel Bf16PanelKernel() {
  if (!CpuHasAvx512Bf16()) return {};
  return {&bf16::Panel, bf16::Bf16Op::kMaxRows, 1};
}
void Bf16RoundValues(const float* x, int64_t n, uint16_t* y) { bf16::RoundValues(x, n, y); }
}  // namespace quintet::cpu

#else

namespace quintet::cpu {
PanelKernel VnniPanelKernel() { return {}; }
PanelKernel Bf16PanelKernel() { return {}; }
void Bf16RoundValues(const float*, int64_t, uint16_t*) { QT_CHECK(false); }
}  // namespace quintet::cpu

#endif
