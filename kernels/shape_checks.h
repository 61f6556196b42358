// What the public functions of several ops check of their tensors before they come to dispatch.h.
#pragma once

#include "kernels/tensor.h"

namespace quintet {

// [rows, columns], each row's elements side by side.
inline void CheckMatrix(const Tensor& t, DType dtype) {
  QT_CHECK(t.dtype == dtype);
  QT_CHECK_EQ(t.rank, 2);
  QT_CHECK_EQ(t.stride[1], 1);
}

// [elements], side by side.
inline void CheckVector(const Tensor& t, DType dtype) {
  QT_CHECK(t.dtype == dtype && t.is_dense());
  QT_CHECK_EQ(t.rank, 1);
}

// The best of a search, [n, k] both: f32 values and which elements they are, i32.
inline void CheckCandidates(const Tensor& values, const Tensor& indices) {
  CheckMatrix(values, DType::kF32);
  CheckMatrix(indices, DType::kI32);
  QT_CHECK_EQ(values.dim[0], indices.dim[0]);
  QT_CHECK_EQ(values.dim[1], indices.dim[1]);
}

}  // namespace quintet
