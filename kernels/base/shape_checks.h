// Argument checks that several ops share. A violation fails a QT_CHECK.
#pragma once

#include "kernels/base/tensor.h"

namespace quintet {

// Checks that t is a matrix [rows, columns] of `dtype` whose rows are contiguous.
inline void CheckMatrix(const Tensor& t, DType dtype) {
  QT_CHECK(t.dtype == dtype);
  QT_CHECK_EQ(t.rank, 2);
  QT_CHECK_EQ(t.stride[1], 1);
}

// Checks that t is a contiguous vector [elements] of `dtype`.
inline void CheckVector(const Tensor& t, DType dtype) {
  QT_CHECK(t.dtype == dtype && t.is_dense());
  QT_CHECK_EQ(t.rank, 1);
}

// Checks the shapes and dtypes of the candidates that a top-k selection or a draw returns: `values`
// [n, k] f32 and `indices` [n, k] i32.
inline void CheckCandidates(const Tensor& values, const Tensor& indices) {
  CheckMatrix(values, DType::kF32);
  CheckMatrix(indices, DType::kI32);
  QT_CHECK_EQ(values.dim[0], indices.dim[0]);
  QT_CHECK_EQ(values.dim[1], indices.dim[1]);
}

}  // namespace quintet
