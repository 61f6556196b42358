#include "kernels/ops/embedding.h"

#include <array>
#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// A gap follows each row. If the row length is a multiple of 8 elements, so is the row stride,
// which keeps rows aligned to 16 bytes.
struct Table {
  Table(DType dtype, int64_t rows, int64_t d, uint32_t seed)
      : stride(d % 8 == 0 ? d + 8 : d + 1),
        values(RoundedTo(dtype, RandomData(seed).Values(rows * stride))),
        dtype(dtype),
        rows(rows),
        d(d) {}
  float At(int64_t row, int64_t i) const { return values[static_cast<size_t>(row * stride + i)]; }
  Tensor PutAt(TestBackend& backend) const {
    Tensor view = backend.Put(values, {rows, d}, dtype);
    view.stride[0] = stride;
    return view;
  }
  int64_t stride;
  std::vector<float> values;
  DType dtype;
  int64_t rows, d;
};

void CheckEmbedding(TestBackend& backend, DType table_type, DType y_type, int64_t rows, int64_t d,
                    bool with_positions) {
  const Table table(table_type, 11, d, 1), position_table(table_type, 5, d, 2);
  std::vector<int32_t> ids, positions;
  for (int64_t r = 0; r < rows; ++r) {
    ids.push_back(static_cast<int32_t>((10 + 7 * r) % 11));
    positions.push_back(static_cast<int32_t>((4 + 3 * r) % 5));
  }
  EmbeddingArgs args;
  args.ids = backend.Put(ids, {rows});
  args.table = table.PutAt(backend);
  args.scale = 0.3f;
  args.y = backend.Poisoned(y_type, {rows, d});
  if (with_positions) {
    args.positions = backend.Put(positions, {rows});
    args.position_table = position_table.PutAt(backend);
  }
  Embedding(args, backend.stream());
  const std::vector<float> y = backend.Floats(args.y);
  int64_t wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < d; ++i) {
      const size_t row = static_cast<size_t>(r);
      float expected = 0.3f * table.At(ids[row], i);
      if (with_positions) expected += position_table.At(positions[row], i);
      const float error = std::abs(y[static_cast<size_t>(r * d + i)] - expected);
      // On the CPU, y must equal the expected value exactly. On a GPU it may differ by one
      // rounding, because a fused multiply-add does not round the product before the addition.
      const bool exact = backend.device() == nullptr;
      const double most = exact ? 0.0 : 0x1p-23 + RoundingError(y_type) * std::abs(expected);
      wrong += error <= most ? 0 : 1;
    }
  }
  INFO(DTypeName(table_type) << " to " << DTypeName(y_type) << " " << rows << "x" << d);
  CHECK(wrong == 0);
}

TEST_CASE("embeddings of every dtype equal the reference, with and without positions",
          "[embedding]") {
  ForEachBackend([](TestBackend& backend) {
    const std::vector<int64_t> few = Pick<int64_t>({1, 7, 16, 33, 64, 100, 768}, {33, 768});
    for (DType table_type : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (DType y_type : backend.float_types()) {
        for (bool with_positions : {false, true}) {
          for (int64_t d : few) CheckEmbedding(backend, table_type, y_type, 4, d, with_positions);
          // With many rows a GPU block processes several rows.
          for (int64_t d : {33, 64}) {
            CheckEmbedding(backend, table_type, y_type, 1021, d, with_positions);
          }
        }
      }
    }
  });
}

void CheckChosen(TestBackend& backend, size_t rows) {
  const Table table(DType::kF32, 11, 16, 1);
  const std::vector<int32_t> chosen = {7, 0, 10};
  std::vector<int32_t> given, expected, slots, noted(rows, 0x55555555);
  for (size_t r = 0; r < rows; ++r) {
    const auto four = std::array<int32_t, 4>{3, -3, -1, -2}[r % 4];
    given.push_back(four);
    expected.push_back(four >= 0 ? four : chosen[static_cast<size_t>(-1 - four)]);
    const size_t slot = rows - 1 - r;
    slots.push_back(r % 3 == 2 ? -1 : static_cast<int32_t>(slot));
    if (r % 3 != 2) noted[slot] = expected[r];
  }
  const auto n = static_cast<int64_t>(rows);
  const Tensor y = backend.Poisoned(DType::kF32, {n, 16});
  const Tensor history = backend.Poisoned(DType::kI32, {n});
  Embedding({.ids = backend.Put(given, {n}),
             .next_tokens = backend.PutBytes(chosen.data(), 12, DType::kI32, {3}),
             .table = table.PutAt(backend),
             .y = y,
             .history = history,
             .slots = backend.Plan(slots)},
            backend.stream());
  CHECK(backend.Ints(history) == noted);
  const std::vector<float> values = backend.Floats(y);
  int wrong = 0;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < 16; ++i) {
      wrong += values[r * 16 + i] == table.At(expected[r], static_cast<int64_t>(i)) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("negative ids refer to chosen tokens, and ids are recorded by slot", "[embedding]") {
  ForEachBackend([](TestBackend& backend) {
    CheckChosen(backend, 4);
    CheckChosen(backend, 1021);
  });
}

TEST_CASE("f16 tables keep the smallest, largest and special values", "[embedding]") {
  const std::vector<uint16_t> bits = {0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff,
                                      0x7c00, 0x8000, 0x3c00, 0x3555, 0x0000, 0xfc00,
                                      0x0200, 0x83ff, 0x3bff, 0x4248};
  ForEachBackend([&](TestBackend& backend) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      std::vector<float> expected(16);
      ConvertToF32(bits.data(), dtype, 16, expected.data());
      const Tensor y = backend.Poisoned(DType::kF32, {1, 16});
      Embedding({.ids = backend.Put(std::vector<int32_t>{0}, {1}),
                 .table = backend.PutBytes(bits.data(), 32, dtype, {1, 16}),
                 .y = y},
                backend.stream());
      CHECK(backend.Floats(y) == expected);
    }
  });
}

}  // namespace
}  // namespace quintet
