#include "kernels/ops/kv_cache.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {

void StoreKv(const StoreKvArgs& args, Stream& stream) {
  QT_CHECK(args.cache != nullptr && args.cache->data != nullptr);
  const KvCache& cache = *args.cache;
  QT_CHECK(args.layer >= 0 && args.layer < cache.layers);
  for (const Tensor* t : {&args.k, &args.v}) {
    QT_CHECK(t->dtype == args.k.dtype && cache.Accepts(t->dtype));
    QT_CHECK(IsActivation(t->dtype, stream));
    QT_CHECK_EQ(t->rank, 3);
    QT_CHECK_EQ(t->dim[0], static_cast<int64_t>(args.slots.size()));
    QT_CHECK_EQ(t->dim[1], cache.heads);
    QT_CHECK_EQ(t->dim[2], cache.head_dim);
    QT_CHECK_EQ(t->stride[2], 1);
  }
  for (int32_t slot : args.slots) {
    QT_CHECK(slot >= -1 && slot < cache.pages * cache.page_size);
  }
  Dispatch<cpu::StoreKv, cuda::StoreKv>(stream, args);
}

}  // namespace quintet
