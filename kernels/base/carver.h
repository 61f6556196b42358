#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/base/tensor.h"

namespace quintet {

// Splits one block of memory into aligned pieces. With a null base it only adds up the sizes of the
// pieces, so that the same code can compute the size of a workspace and lay it out.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  void* Take(int64_t bytes) {
    void* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  Tensor TakeTensor(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t = Tensor::Dense(static_cast<void*>(nullptr), dtype, dims);
    t.data = Take(t.elements() * DTypeBytes(dtype));
    return t;
  }
  int64_t used_bytes() const { return used_; }

 private:
  static constexpr int64_t kAlignment = 256;  // best for GEMMs on a GPU

  char* base_;
  int64_t used_ = 0;
};

}  // namespace quintet
