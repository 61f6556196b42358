#include "kernels/embedding.h"

#include <cstring>

#include "catch2/catch.hpp"
#include "tests/kernels/random_data.h"

namespace quintet {
namespace {

struct Table {
  Table(DType dtype, int64_t rows, int64_t d, uint32_t seed) {
    const std::vector<float> values = RandomData(seed).Values(rows * (d + 1));
    bytes.resize(values.size() * static_cast<size_t>(DTypeBytes(dtype)));
    ConvertFromF32(values.data(), static_cast<int64_t>(values.size()), dtype, bytes.data());
    view = Tensor::Dense(bytes.data(), dtype, {rows, d});
    view.stride[0] = d + 1;
  }
  float At(int64_t row, int64_t i) const {
    float value;
    const int64_t offset = (row * view.stride[0] + i) * DTypeBytes(view.dtype);
    ConvertToF32(bytes.data() + offset, view.dtype, 1, &value);
    return value;
  }
  std::vector<char> bytes;
  Tensor view;
};

TEST_CASE("embedding of every dtype, with and without positions", "[embedding]") {
  ForEachIsa([] {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (int64_t d : {1, 7, 16, 33, 64, 100}) {
        const Table table(dtype, 11, d, 1), positions_table(dtype, 5, d, 2);
        const std::vector<int32_t> ids = {10, 0, 3, 3}, positions = {4, 0, 1, 2};
        for (bool with_positions : {false, true}) {
          ThreadPool pool(2);
          Stream stream(&pool);
          std::vector<float> y(static_cast<size_t>(4 * d), NAN);
          EmbeddingArgs args;
          args.ids = Tensor::Dense(ids.data(), DType::kI32, {4});
          args.table = table.view;
          args.scale = 0.3f;
          args.y = Tensor::F32(y.data(), {4, d});
          if (with_positions) {
            args.positions = Tensor::Dense(positions.data(), DType::kI32, {4});
            args.position_table = positions_table.view;
          }
          Embedding(args, stream);
          for (int64_t r = 0; r < 4; ++r) {
            for (int64_t i = 0; i < d; ++i) {
              const size_t row = static_cast<size_t>(r);
              float expected = 0.3f * table.At(ids[row], i);
              if (with_positions) expected += positions_table.At(positions[row], i);
              REQUIRE(y[static_cast<size_t>(r * d + i)] == expected);
            }
          }
        }
      }
    }
  });
}

TEST_CASE("half-precision tables: smallest, largest and special values", "[embedding]") {
  const std::vector<uint16_t> bits = {0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
                                      0x7c00, 0x8000, 0x3c00, 0x3555, 0x0000, 0xfc00,
                                      0x0200, 0x83ff, 0x3bff, 0x4248};
  const std::vector<int32_t> ids = {0};
  ForEachIsa([&] {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      ThreadPool pool(1);
      Stream stream(&pool);
      std::vector<float> y(16), expected(16);
      ConvertToF32(bits.data(), dtype, 16, expected.data());
      Embedding({.ids = Tensor::Dense(ids.data(), DType::kI32, {1}),
                 .table = Tensor::Dense(bits.data(), dtype, {1, 16}),
                 .y = Tensor::F32(y.data(), {1, 16})},
                stream);
      CHECK(std::memcmp(y.data(), expected.data(), 64) == 0);
    }
  });
}

}  // namespace
}  // namespace quintet
