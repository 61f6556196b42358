// Random LoRA adapters of one weight, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/linear/lora.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/test_backend.h"

namespace quintet {

// A weight [parts * part_columns, k].
struct AdapterShape {
  int64_t parts, part_columns, k;
  int64_t least_rank = 1;  // of the adapters
};

// Adapters with random factors: adapter t changes output column range p unless (t + p) % 3 is 0.
class Adapters {
 public:
  Adapters(const AdapterShape& c, DType dtype, TestBackend& backend) : c_(c) {
    const bool on_cpu = backend.device() == nullptr;
    weight_ = {.stride = c.parts + 2, .parts = c.parts, .part_columns = c.part_columns, .k = c.k};
    weight_.dtype = dtype;
    std::vector<LoraPart> table(static_cast<size_t>(kCount * weight_.stride));
    factors_.resize(kCount * static_cast<size_t>(c.parts));
    for (int64_t t = 0; t < kCount; ++t) {
      for (int64_t p = 0; p < c.parts; ++p) {
        if ((t + p) % 3 == 0) continue;
        const int64_t rank = c.least_rank + 7 * t + 3 * p;
        const auto seed = static_cast<uint32_t>(100 * t + 10 * p);
        Factors& f = factors_[static_cast<size_t>(t * c.parts + p)];
        f.rank = rank;
        f.a = RoundedTo(dtype, Random(rank * c.k, seed, 0.2f));
        f.b = RoundedTo(dtype, Random(rank * c.part_columns, seed + 1, 0.3f));
        const int64_t padded = on_cpu ? rank : (rank + 15) / 16 * 16;
        std::vector<float> a = f.a, b(static_cast<size_t>(padded * c.part_columns));
        a.resize(static_cast<size_t>(padded * c.k));
        for (int64_t i = 0; i < rank; ++i) {
          for (int64_t n = 0; n < c.part_columns; ++n) {
            b[on_cpu ? i * c.part_columns + n : n * padded + i] = f.b[i * c.part_columns + n];
          }
        }
        table[static_cast<size_t>(t * weight_.stride + p)] = {
            backend.Put(a, {padded, c.k}, dtype).data,
            backend.Put(b, {padded, c.part_columns}, dtype).data, padded};
        weight_.max_rank = std::max(weight_.max_rank, padded);
      }
    }
    const auto bytes = static_cast<int64_t>(table.size() * sizeof(LoraPart));
    weight_.table = static_cast<const LoraPart*>(
        backend.PutBytes(table.data(), bytes, DType::kI8, {bytes}).data);
    const uint64_t first = uint64_t{1} << 16;
    counter_ = backend.PutBytes(&first, sizeof(first), DType::kI32, {2});
    weight_.counter = counter_.as<uint64_t>();
  }

  const LoraWeight& weight() const { return weight_; }
  const Tensor& counter() const { return counter_; }
  // Returns what adapter `adapter` adds to column `column` of the output for the input row `x`.
  double Correction(int32_t adapter, const double* x, int64_t column) const {
    if (adapter < 0) return 0.0;
    const Factors& f = factors_[static_cast<size_t>(adapter * c_.parts + column / c_.part_columns)];
    double sum = 0.0;
    for (int64_t i = 0; i < f.rank; ++i) {
      double t = 0.0;
      for (int64_t j = 0; j < c_.k; ++j) t += x[j] * f.a[i * c_.k + j];
      sum += t * f.b[i * c_.part_columns + column % c_.part_columns];
    }
    return sum;
  }

  static constexpr int64_t kCount = 3;

 private:
  struct Factors {
    int64_t rank = 0;
    std::vector<float> a, b;
  };
  const AdapterShape c_;
  LoraWeight weight_;
  Tensor counter_;
  std::vector<Factors> factors_;
};

// Returns the adapter of each row, -1 for none. It is -1 in rows 0 and 1, then varies from -1 to 2.
inline std::vector<int32_t> AdapterOfRows(int64_t rows) {
  std::vector<int32_t> adapters;
  for (int64_t r = 0; r < rows; ++r) {
    adapters.push_back(r < 2 ? -1 : static_cast<int32_t>((r * r / 3) % 4) - 1);
  }
  return adapters;
}

}  // namespace quintet
