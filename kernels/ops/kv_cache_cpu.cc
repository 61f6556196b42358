#include <cstring>

#include "kernels/cpu_ops.h"
#include "kernels/runtime/parallel_rows.h"

namespace quintet::cpu {

void StoreKv(const StoreKvArgs& args, ThreadPool& pool) {
  const KvCache& cache = *args.cache;
  const size_t bytes = static_cast<size_t>(cache.head_dim) * sizeof(float);
  const auto copy_rows = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (args.slots[static_cast<size_t>(r)] < 0) continue;
      float* slot = cache.as<float>() + cache.SlotOffset(args.slots[static_cast<size_t>(r)]);
      for (int64_t h = 0; h < cache.heads; ++h) {
        std::memcpy(slot + cache.ChunkOffset(args.layer, false, h),
                    args.k.as<float>() + r * args.k.stride[0] + h * args.k.stride[1], bytes);
        std::memcpy(slot + cache.ChunkOffset(args.layer, true, h),
                    args.v.as<float>() + r * args.v.stride[0] + h * args.v.stride[1], bytes);
      }
    }
  };
  ParallelRows(pool, args.k.dim[0], 2 * cache.heads * cache.head_dim, copy_rows);
}

}  // namespace quintet::cpu
