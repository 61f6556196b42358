#include <algorithm>

#include "kernels/cuda_ops.h"
#include "kernels/runtime/cuda.cuh"
#include "kernels/runtime/e4m3.cuh"

namespace quintet::cuda {
namespace {

// A copy unit: what one thread copies. Stored: the same unit in the cache.
template <typename Bits>
struct CopiedUnit {
  using Stored = Bits;
  Bits bits;
  __device__ void Store(Stored* to) const { *to = bits; }
};
// kCount values of T that become e4m3.
template <typename T, int kCount>
struct alignas(kCount * sizeof(T)) E4m3Unit {
  struct Stored {
    uint8_t bytes[kCount];
  };
  T values[kCount];
  __device__ void Store(Stored* to) const {
    const E4m3Unit loaded = *this;
    StoreE4m3<T, kCount>(loaded.values, to->bytes);
  }
};

// Kernel arguments. All lengths and strides are in copy units.
struct StoreKvParams {
  const void* k;
  const void* v;
  void* cache;
  const int32_t* slots;
  int64_t k_row_stride, k_head_stride, v_row_stride, v_head_stride;
  int64_t page_stride;  // from one cache page to the next
  int64_t layer_offset;
  int heads, page_size, head_units;
};

// Copies the keys and values of every row to the cache slot of the row.
// Shapes: k and v [rows, heads, head_dim]; cache pages [layers, 2, heads, page_size, head_dim].
// Numerics: a byte copy in units of 16, 4 or 2 bytes; to a cache of e4m3 a conversion of 8 values
// or of one (runtime/e4m3.cuh).
// Mapping: one thread per copy unit, one row per blockIdx.y. Loads and stores are coalesced within
// a head.
// Bound: bytes of keys and values, read once and written once; launch latency at decoding sizes.
// Test: tests/kernels/ops/kv_cache_test.cc.
template <typename Unit>
__global__ void StoreKvKernel(StoreKvParams a) {
  WaitOnDependentGrids();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row_units = a.heads * a.head_units;
  const int64_t row = blockIdx.y, slot = a.slots[row];
  if (i >= 2 * row_units || slot < 0) return;
  const bool value = i >= row_units;
  const int head = i % row_units / a.head_units, unit = i % a.head_units;
  const Unit* from =
      value ? static_cast<const Unit*>(a.v) + row * a.v_row_stride + head * a.v_head_stride + unit
            : static_cast<const Unit*>(a.k) + row * a.k_row_stride + head * a.k_head_stride + unit;
  const int64_t chunk = (value ? a.heads : 0) + head;
  const int64_t at = slot / a.page_size * a.page_stride + a.layer_offset +
                     (chunk * a.page_size + slot % a.page_size) * a.head_units + unit;
  from->Store(static_cast<typename Unit::Stored*>(a.cache) + at);
}

// Returns all bits of the addresses, strides and lengths of the copy, in bytes.
uint64_t AddressBits(const StoreKvArgs& args) {
  const int64_t size = DTypeBytes(args.k.dtype);
  uint64_t bits = static_cast<uint64_t>(args.cache->head_dim * size) |
                  reinterpret_cast<uintptr_t>(args.cache->data);
  for (const Tensor* t : {&args.k, &args.v}) {
    bits |= reinterpret_cast<uintptr_t>(t->data) |
            static_cast<uint64_t>(t->stride[0] * size | t->stride[1] * size);
  }
  return bits;
}

template <typename Unit>
void StoreUnits(const StoreKvArgs& args, CudaStream& stream) {
  const KvCache& cache = *args.cache;
  const unsigned rows = static_cast<unsigned>(args.k.dim[0]);
  const auto units = [&](int64_t elements) {
    return elements * DTypeBytes(args.k.dtype) / static_cast<int64_t>(sizeof(Unit));
  };
  StoreKvParams a{};
  a.k = args.k.data;
  a.v = args.v.data;
  a.cache = cache.data;
  a.slots = stream.DevicePtr(args.slots.data());
  a.k_row_stride = units(args.k.stride[0]);
  a.k_head_stride = units(args.k.stride[1]);
  a.v_row_stride = units(args.v.stride[0]);
  a.v_head_stride = units(args.v.stride[1]);
  a.page_stride = units(cache.page_elements());
  a.layer_offset = units(cache.ChunkOffset(args.layer, false, 0));
  a.heads = static_cast<int>(cache.heads);
  a.page_size = static_cast<int>(cache.page_size);
  a.head_units = static_cast<int>(units(cache.head_dim));
  constexpr int kThreads = 256;
  const unsigned blocks =
      static_cast<unsigned>((2 * a.heads * a.head_units + kThreads - 1) / kThreads);
  constexpr unsigned kMaxGridRows = 65535;  // limit of gridDim.y
  for (unsigned row = 0; row < rows; row += kMaxGridRows) {
    Launch(stream, dim3(blocks, std::min(kMaxGridRows, rows - row)), dim3(kThreads), 0,
           StoreKvKernel<Unit>, a);
    a.k = static_cast<const Unit*>(a.k) + a.k_row_stride * kMaxGridRows;
    a.v = static_cast<const Unit*>(a.v) + a.v_row_stride * kMaxGridRows;
    a.slots += kMaxGridRows;
  }
}

template <typename T>
void StoreAsE4m3(const StoreKvArgs& args, bool vectors, CudaStream& stream) {
  vectors ? StoreUnits<E4m3Unit<T, 8>>(args, stream) : StoreUnits<E4m3Unit<T, 1>>(args, stream);
}

}  // namespace

void StoreKv(const StoreKvArgs& args, CudaStream& stream) {
  if (args.k.dim[0] == 0) return;
  const uint64_t bits = AddressBits(args);
  if (args.cache->dtype == DType::kF8) {
    return args.k.dtype == DType::kBF16 ? StoreAsE4m3<__nv_bfloat16>(args, bits % 16 == 0, stream)
                                        : StoreAsE4m3<__half>(args, bits % 16 == 0, stream);
  }
  const auto store = bits % 16 == 0  ? StoreUnits<CopiedUnit<uint4>>
                     : bits % 4 == 0 ? StoreUnits<CopiedUnit<uint32_t>>
                                     : StoreUnits<CopiedUnit<uint16_t>>;
  store(args, stream);
}

}  // namespace quintet::cuda
