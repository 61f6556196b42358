// Shared by the two kinds of LoRA kernels (linear/lora.cu, linear/lora_tiles.cuh): their arguments,
// the norm of a row, and the addresses of the outputs.
#pragma once

#include "kernels/linear/lora.h"
#include "kernels/runtime/cuda.cuh"

namespace quintet::cuda::lora {

template <typename X>
struct ShrinkParams {
  const X* x;
  int64_t x_stride;
  const float* gamma;  // or null
  const float* beta;   // or null
  float eps;
  const LoraPart* table;
  int64_t stride;
  const int32_t* adapters;
  float* t;
  int rows, k, parts, max_rank;
};

// The addresses of the outputs of an AddLora call.
template <typename Y>
struct LoraOutputs {
  Y* y;
  int64_t y_stride;
  const int64_t* row_offset;    // scatter, or null
  const int64_t* chunk_offset;  // scatter
  int chunk;                    // scatter
  const int32_t* slots;         // cache of keys and values, or null
  Y* cache;
  int64_t page_elements, layer_offset;
  int page_size, inner, head_dim;  // inner: heads * head_dim

  // Address of column c of a row; null: not stored.
  __device__ Y* At(int row, int c) const {
    if (row_offset != nullptr) {
      return y + row_offset[row] + chunk_offset[c / chunk] + c % chunk;
    }
    if (slots == nullptr || c < inner) return y + row * y_stride + c;
    const int slot = slots[row];
    if (slot < 0) return nullptr;
    const int64_t head = (c - inner) / head_dim;  // of the keys, then of the values
    return cache + slot / page_size * page_elements + slot % page_size * int64_t{head_dim} +
           layer_offset + head * page_size * head_dim + c % head_dim;
  }
};

template <typename Y>
struct ExpandParams {
  const float* t;
  const LoraPart* table;
  int64_t stride;
  const int32_t* adapters;
  LoraOutputs<Y> out;
  int rows, parts, part_columns, max_rank;
  bool overwrite;
};

// The table does not change while kernels run, so it may be read before WaitOnDependentGrids.
__device__ inline LoraPart LoadPart(const LoraPart* from) {
  const auto* const words = reinterpret_cast<const unsigned long long*>(from);
  LoraPart part;
  part.a = reinterpret_cast<const void*>(__ldcg(words));
  part.b = reinterpret_cast<const void*>(__ldcg(words + 1));
  part.rank = static_cast<int64_t>(__ldcg(words + 2));
  return part;
}

// The norm of a row as value = (x - mean) * scale * gamma + beta.
struct RowNorm {
  float mean = 0.0f, scale = 1.0f;
};

template <typename X>
__device__ float Normed(const ShrinkParams<X>& a, const RowNorm& norm, float x, int c) {
  if (a.gamma == nullptr) return x;
  const float y = (x - norm.mean) * norm.scale * a.gamma[c];
  return a.beta == nullptr ? y : y + a.beta[c];
}

// Computed by a warp.
template <typename X>
__device__ RowNorm NormOfRow(const ShrinkParams<X>& a, const X* x) {
  RowNorm norm;
  if (a.gamma == nullptr) return norm;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float inverse = 1.0f / static_cast<float>(a.k);
  if (a.beta != nullptr) {
    float sum = 0.0f;
#pragma unroll 8
    for (int c = lane; c < a.k; c += 32) sum += ToF32(x[c]);
    norm.mean = WarpSum(sum) * inverse;
  }
  float squares = 0.0f;
#pragma unroll 8
  for (int c = lane; c < a.k; c += 32) {
    const float v = ToF32(x[c]) - norm.mean;
    squares += v * v;
  }
  norm.scale = rsqrtf(WarpSum(squares) * inverse + a.eps);
  return norm;
}

}  // namespace quintet::cuda::lora
