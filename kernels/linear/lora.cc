#include "kernels/linear/lora.h"

#include "kernels/cpu_ops.h"
#include "kernels/cuda_ops.h"
#include "kernels/runtime/dispatch.h"

namespace quintet {
namespace {

void CheckOutputs(const AddLoraArgs& a) {
  const LoraWeight& w = *a.weight;
  const int64_t rows = a.x.dim[0];
  if (a.scatter.base != nullptr) {
    QT_CHECK(!a.y.defined() && a.kv.cache == nullptr && !a.overwrite);
    QT_CHECK(a.scatter.dtype != DType::kF8);
    QT_CHECK_GT(a.scatter.chunk, 0);
    QT_CHECK_EQ(w.part_columns % a.scatter.chunk, 0);
    return;
  }
  QT_CHECK_EQ(a.y.rank, 2);
  QT_CHECK_EQ(a.y.dim[0], rows);
  QT_CHECK_EQ(a.y.dim[1], w.n());
  QT_CHECK(a.y.stride[1] == 1 || w.n() == 1);
  QT_CHECK(a.y.dtype == DType::kF32 || a.y.dtype == w.dtype);
  if (a.kv.cache == nullptr) return;
  QT_CHECK(!a.overwrite && a.y.dtype == a.kv.cache->dtype);
  QT_CHECK_EQ(3 * a.kv.cache->heads * a.kv.cache->head_dim, w.n());
  QT_CHECK_EQ(static_cast<int64_t>(a.kv.slots.size()), rows);
}

void CheckShapes(const AddLoraArgs& a, const Stream& stream) {
  const LoraWeight& w = *a.weight;
  const int64_t rows = a.x.dim[0];
  QT_CHECK(w.table != nullptr && w.parts > 0 && w.max_rank > 0);
  QT_CHECK_EQ(a.x.rank, 2);
  QT_CHECK(a.x.dtype == DType::kF32 || a.x.dtype == w.dtype);
  QT_CHECK(stream.backend() != Backend::kCpu || w.dtype == DType::kF32);
  QT_CHECK_EQ(a.x.dim[1], w.k);
  QT_CHECK(a.x.stride[1] == 1 || w.k == 1);
  QT_CHECK_EQ(static_cast<int64_t>(a.adapters.size()), rows);
  for (const Tensor* gamma : {&a.norm_gamma, &a.norm_beta}) {
    if (!gamma->defined()) continue;
    QT_CHECK(gamma->dtype == DType::kF32 && gamma->is_dense() && a.x.dtype == DType::kF32);
    QT_CHECK_EQ(gamma->dim[0], w.k);
  }
  QT_CHECK(a.norm_gamma.defined() || !a.norm_beta.defined());
  QT_CHECK_GE(a.scratch.elements(), LoraScratchBytes(w, rows));
  CheckOutputs(a);
}

}  // namespace

void AddLora(const AddLoraArgs& args, Stream& stream) {
  CheckShapes(args, stream);
  Dispatch<cpu::AddLora, cuda::AddLora>(stream, args);
}

void MergeLora(const MergeLoraArgs& args, Stream& stream) {
  QT_CHECK(SupportsMergeLora(*args.w, *args.lora, stream));
  Dispatch<cpu::MergeLora, cuda::MergeLora>(stream, args);
}

bool SupportsMergeLora(const WeightView& w, const LoraWeight& lora, const Stream& stream) {
  return Dispatch<cpu::SupportsMergeLora, cuda::SupportsMergeLora>(stream, w, lora);
}

// One f32 for each row of x and row of an a.
int64_t LoraScratchBytes(const LoraWeight& weight, int64_t rows) {
  return rows * weight.parts * weight.max_rank * int64_t{sizeof(float)};
}

// LoraInput::words holds partial sums of t = x a^T. Each slice of k has one 16-byte word
// (cuda::LoraWord) for each pair of adjacent values in a row of t.
int64_t LoraWordBytes(const LoraWeight& weight, const Stream& stream) {
  if (stream.backend() == Backend::kCpu) return 0;
  const int64_t slices = (weight.k + kLoraSlice - 1) / kLoraSlice;
  return slices * kMaxLoraInputRows * weight.parts * weight.max_rank / 2 * 16;
}

int64_t LoraCopyBytes(const WeightView& w, const Stream& stream) {
  return Dispatch<cpu::LoraCopyBytes, cuda::LoraCopyBytes>(stream, w);
}

}  // namespace quintet
