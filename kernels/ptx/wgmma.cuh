// sm_90a instructions of the Hopper kernels: warpgroup matrix multiply (wgmma) and register
// reallocation between warpgroups. Everything is inlined, because wgmma registers must not cross a
// call.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/ptx/mma.cuh"

namespace quintet::cuda {

constexpr int kWarpgroup = 128;  // threads

// warpgroup_reg_alloc and warpgroup_reg_dealloc: raise or lower the number of registers of each
// thread of the calling warpgroup to kRegisters.
template <int kRegisters>
__device__ __forceinline__ void WarpgroupRegAlloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void WarpgroupRegDealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

// Named barriers that synchronise only some warpgroups of a CTA. `id` must not be 0, the barrier of
// __syncthreads.
__device__ __forceinline__ void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

// wgmma descriptor of a matrix of 16-bit values in shared memory: rows of 64 values (128 bytes),
// starting at a 1024-byte boundary. The rows are swizzled: 16-byte chunk c of a row is stored as
// chunk c ^ (row % 8). K-major operand: the product sums along a row, and adding 32 bytes to the
// address selects the next 16 values of k. MN-major operand: the product sums over rows, and blocks
// of 64 columns are `column_stride` bytes apart.
__device__ __forceinline__ uint64_t MakeSmemDescriptor(uint32_t address, uint32_t column_stride) {
  constexpr uint64_t kPermuted128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 / 16} << 32;
  return kPermuted128 | kEightRows | uint64_t{column_stride / 16} << 16 | (address & 0x3ffff) / 16;
}

// wgmma descriptor of a [16, 8] matrix of 16-bit values that are all equal. The caller must have
// filled the 256 bytes at `address` with copies of the value.
__device__ __forceinline__ uint64_t MakeConstantSmemDescriptor(uint32_t address) {
  constexpr uint64_t kStride = 128 / 16;  // between 8 x 8 core matrices
  return kStride << 32 | kStride << 16 | (address & 0x3ffff) / 16;
}

// wgmma descriptor of an unswizzled K-major matrix (the product sums along a row) in 8 x 8 core
// matrices of 128 bytes each. row_stride: bytes between the core matrices of consecutive groups of
// eight rows. value_stride: bytes between the core matrices of consecutive groups of eight columns.
__device__ __forceinline__ uint64_t MakeStridedSmemDescriptor(uint32_t address, uint32_t row_stride,
                                                              uint32_t value_stride) {
  return uint64_t{row_stride / 16} << 32 | uint64_t{value_stride / 16} << 16 |
         (address & 0x3ffff) / 16;
}

// Wrappers of wgmma.fence (warpgroup_arrive), wgmma.commit_group and wgmma.wait_group.
__device__ __forceinline__ void WarpgroupArrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WarpgroupCommitBatch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}
// stmatrix: stores four 8 x 8 matrices of 16-bit values; the inverse of Ldmatrix (mma.cuh).
__device__ __forceinline__ void Stmatrix(const uint32_t (&r)[4], uint32_t row_address) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :
               : "r"(row_address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
// warpgroup_fence_operand: stops the compiler from moving uses of `values` across this point.
template <typename T, int kCount>
__device__ __forceinline__ void WarpgroupFenceOperand(T (&values)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if constexpr (std::is_same_v<T, float>) {
        asm volatile("" : "+f"(values[i][e])::"memory");
      } else {
        asm volatile("" : "+r"(values[i][e])::"memory");
      }
    }
  }
}

// Lists of asm operands for the accumulators c: c[i] is the four registers in which a lane holds
// its values of eight columns. QT_C1(i), QT_C4(i) and QT_C8(i) list 8, 32 and 64 columns of f32,
// from c[i] on; QT_I1(i) and QT_I8(i) list 8 and 64 columns of i32.
#define QT_C1(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])
#define QT_C4(i) QT_C1(i), QT_C1(i + 1), QT_C1(i + 2), QT_C1(i + 3)
#define QT_C8(i)                                                                                \
  QT_C1(i), QT_C1(i + 1), QT_C1(i + 2), QT_C1(i + 3), QT_C1(i + 4), QT_C1(i + 5), QT_C1(i + 6), \
      QT_C1(i + 7)
#define QT_I1(i) "+r"(c[i][0]), "+r"(c[i][1]), "+r"(c[i][2]), "+r"(c[i][3])
#define QT_I8(i)                                                                                \
  QT_I1(i), QT_I1(i + 1), QT_I1(i + 2), QT_I1(i + 3), QT_I1(i + 4), QT_I1(i + 5), QT_I1(i + 6), \
      QT_I1(i + 7)
#define QT_R0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define QT_R16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QT_R32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define QT_R48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QT_R64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define QT_R80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define QT_R96 \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define QT_R112 \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// The asm statement of a wgmma with both operands in shared memory, K-major. size: the shape, such
// as "m64n16". types: the number of values of k and the types, such as "k16.f32.bf16.bf16". tail:
// the operands after `accumulate`. a_name, b_name, p_name: the names in the asm text, such as "%8",
// of descriptor a, descriptor b and `accumulate`.
#define QT_WGMMA_OF(size, types, tail, registers, a_name, b_name, p_name, ...)                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p_name                                         \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned." size types " {" registers "}, " a_name ", " b_name \
               ", p" tail ";\n}\n"                                                                \
               : __VA_ARGS__                                                                      \
               : "l"(a), "l"(b), "r"(accumulate ? 1 : 0))
// QT_WGMMA_OF for 16-bit operands, 16 values of k.
#define QT_WGMMA_SHARED(size, type, ...) \
  QT_WGMMA_OF(size, "k16.f32." type "." type, ", 1, 1, 0, 0", __VA_ARGS__)
// The asm statement of a wgmma with operand a in registers and operand b in shared memory, 16
// values of k. transposed: "1" if b is MN-major, "0" if it is K-major. The other parameters are
// those of QT_WGMMA_OF.
#define QT_WGMMA_REGISTERS_OF(size, type, transposed, registers, a_names, b_name, p_name, ...) \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p_name                                      \
               ", 0;\n"                                                                        \
               "wgmma.mma_async.sync.aligned." size "k16.f32." type "." type " {" registers    \
               "}, {" a_names "}, " b_name ", p, 1, 1, " transposed ";\n}\n"                   \
               : __VA_ARGS__                                                                   \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate ? 1 : 0))
#define QT_WGMMA_REGISTERS(size, type, ...) QT_WGMMA_REGISTERS_OF(size, type, "1", __VA_ARGS__)
#define QT_WGMMA_REGISTERS_K(size, type, ...) QT_WGMMA_REGISTERS_OF(size, type, "0", __VA_ARGS__)

#define QT_REGISTERS_8 "%0, %1, %2, %3"
#define QT_REGISTERS_16 QT_REGISTERS_8 ", %4, %5, %6, %7"
#define QT_REGISTERS_32 QT_R0
#define QT_REGISTERS_64 QT_R0 ", " QT_R16
#define QT_REGISTERS_72 QT_REGISTERS_64 ", %32, %33, %34, %35"
#define QT_REGISTERS_80 QT_REGISTERS_72 ", %36, %37, %38, %39"
#define QT_REGISTERS_128 QT_REGISTERS_64 ", " QT_R32 ", " QT_R48
#define QT_REGISTERS_256 QT_REGISTERS_128 ", " QT_R64 ", " QT_R80 ", " QT_R96 ", " QT_R112

// Defines name(c [64 x columns], a, b, accumulate) for 16 values of k. kind: SHARED, REGISTERS or
// REGISTERS_K, the place of operand a and the order of b. The arguments after `columns` are passed
// to QT_WGMMA_SHARED, QT_WGMMA_REGISTERS or QT_WGMMA_REGISTERS_K.
#define QT_WGMMA_NAMED(name, kind, declared_a, columns, ...)                              \
  template <typename T>                                                                   \
  __device__ __forceinline__ void name(float(&c)[columns / 8][4], declared_a, uint64_t b, \
                                       bool accumulate) {                                 \
    if constexpr (std::is_same_v<T, __half>) {                                            \
      QT_WGMMA_##kind("m64n" #columns, "f16", QT_REGISTERS_##columns, __VA_ARGS__);       \
    } else {                                                                              \
      QT_WGMMA_##kind("m64n" #columns, "bf16", QT_REGISTERS_##columns, __VA_ARGS__);      \
    }                                                                                     \
  }
#define QT_WGMMA(kind, ...) QT_WGMMA_NAMED(Wgmma, kind, __VA_ARGS__)

// Wgmma with both operands in shared memory: c [64 x columns] = a b^T, plus the old c if
// `accumulate`.
QT_WGMMA(SHARED, uint64_t a, 16, "%8", "%9", "%10", QT_C1(0), QT_C1(1))
QT_WGMMA(SHARED, uint64_t a, 32, "%16", "%17", "%18", QT_C4(0))
QT_WGMMA(SHARED, uint64_t a, 64, "%32", "%33", "%34", QT_C8(0))
QT_WGMMA(SHARED, uint64_t a, 80, "%40", "%41", "%42", QT_C8(0), QT_C1(8), QT_C1(9))
QT_WGMMA(SHARED, uint64_t a, 128, "%64", "%65", "%66", QT_C8(0), QT_C8(8))
QT_WGMMA(SHARED, uint64_t a, 256, "%128", "%129", "%130", QT_C8(0), QT_C8(8), QT_C8(16), QT_C8(24))
// Wgmma with operand a in registers and b MN-major: c [64 x columns] = a b, plus the old c if
// `accumulate`. Each warp's registers of a have the A fragment layout of mma.m16n8k16.
QT_WGMMA(REGISTERS, const uint32_t (&a)[4], 8, "%4, %5, %6, %7", "%8", "%9", QT_C1(0))
QT_WGMMA(REGISTERS, const uint32_t (&a)[4], 64, "%32, %33, %34, %35", "%36", "%37", QT_C8(0))
QT_WGMMA(REGISTERS, const uint32_t (&a)[4], 72, "%36, %37, %38, %39", "%40", "%41", QT_C8(0),
         QT_C1(8))
QT_WGMMA(REGISTERS, const uint32_t (&a)[4], 128, "%64, %65, %66, %67", "%68", "%69", QT_C8(0),
         QT_C8(8))

// The same with b K-major: c = a b^T.
QT_WGMMA_NAMED(WgmmaKMajor, REGISTERS_K, const uint32_t (&a)[4], 16, "%8, %9, %10, %11", "%12",
               "%13", QT_C1(0), QT_C1(1))
QT_WGMMA_NAMED(WgmmaKMajor, REGISTERS_K, const uint32_t (&a)[4], 32, "%16, %17, %18, %19", "%20",
               "%21", QT_C4(0))
QT_WGMMA_NAMED(WgmmaKMajor, REGISTERS_K, const uint32_t (&a)[4], 64, "%32, %33, %34, %35", "%36",
               "%37", QT_C8(0))

// Wgmma with 8-bit operands in shared memory, 32 values of k: e4m3 with f32 sums, or int8 with i32
// sums. A 128-byte row holds 128 values. MakeSmemDescriptor makes the descriptors here, too.
__device__ __forceinline__ void ByteWgmma(float (&c)[8][4], uint64_t a, uint64_t b,
                                          bool accumulate) {
  QT_WGMMA_OF("m64n64", "k32.f32.e4m3.e4m3", ", 1, 1", QT_REGISTERS_64, "%32", "%33", "%34",
              QT_C8(0));
}
__device__ __forceinline__ void ByteWgmma(int32_t (&c)[8][4], uint64_t a, uint64_t b,
                                          bool accumulate) {
  QT_WGMMA_OF("m64n64", "k32.s32.s8.s8", "", QT_REGISTERS_64, "%32", "%33", "%34", QT_I8(0));
}
__device__ __forceinline__ void ByteWgmma(float (&c)[16][4], uint64_t a, uint64_t b,
                                          bool accumulate) {
  QT_WGMMA_OF("m64n128", "k32.f32.e4m3.e4m3", ", 1, 1", QT_REGISTERS_128, "%64", "%65", "%66",
              QT_C8(0), QT_C8(8));
}
__device__ __forceinline__ void ByteWgmma(int32_t (&c)[16][4], uint64_t a, uint64_t b,
                                          bool accumulate) {
  QT_WGMMA_OF("m64n128", "k32.s32.s8.s8", "", QT_REGISTERS_128, "%64", "%65", "%66", QT_I8(0),
              QT_I8(8));
}

#undef QT_C1
#undef QT_C4
#undef QT_C8
#undef QT_R0
#undef QT_R16
#undef QT_R32
#undef QT_R48
#undef QT_R64
#undef QT_R80
#undef QT_R96
#undef QT_R112
#undef QT_REGISTERS_8
#undef QT_REGISTERS_16
#undef QT_REGISTERS_32
#undef QT_REGISTERS_64
#undef QT_REGISTERS_72
#undef QT_REGISTERS_80
#undef QT_REGISTERS_128
#undef QT_REGISTERS_256
#undef QT_I1
#undef QT_I8
#undef QT_WGMMA
#undef QT_WGMMA_NAMED
#undef QT_WGMMA_OF
#undef QT_WGMMA_SHARED
#undef QT_WGMMA_REGISTERS
#undef QT_WGMMA_REGISTERS_K
#undef QT_WGMMA_REGISTERS_OF

}  // namespace quintet::cuda
