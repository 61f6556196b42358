#include "kernels/ops/kv_cache.h"

#include <cmath>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

// On a GPU, heads of 5 values are copied element by element and heads of 8 in units of 16 bytes.
TEST_CASE("StoreKv writes keys and values to their slots and nothing else", "[kv_cache]") {
  for (const int64_t head_dim : {5, 8}) {
    CAPTURE(head_dim);
    KvCache cache{
        .data = nullptr, .pages = 4, .layers = 3, .heads = 2, .page_size = 8, .head_dim = head_dim};
    const int64_t part = cache.heads * head_dim, width = 3 * part + head_dim % 2;
    const std::vector<int32_t> slots = {0, 31, -1, 8, 13};
    const int64_t rows = static_cast<int64_t>(slots.size());
    const std::vector<float> qkv = RandomData(1).Values(rows * width);
    ForEachBackend([&](TestBackend& backend) {
      const Tensor memory = backend.Poisoned(DType::kF32, {cache.pages * cache.page_elements()});
      cache.data = memory.f32();
      const Tensor packed = backend.Put(qkv, {rows, width});
      const auto view = [&](int64_t index) {
        return packed.Columns(index * part, (index + 1) * part).SplitLast(head_dim);
      };
      StoreKv(
          {.k = view(1), .v = view(2), .cache = &cache, .layer = 2, .slots = backend.Plan(slots)},
          backend.stream());
      const std::vector<float> data = backend.Floats(memory);
      int64_t written = 0;
      for (float x : data) written += !std::isnan(x);
      CHECK(written == (rows - 1) * 2 * part);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t slot = slots[static_cast<size_t>(r)];
        if (slot < 0) continue;
        for (int64_t i = 0; i < part; ++i) {
          // Returns element i of the slot's keys (which = 0) or values (which = 1) in layer 2,
          // where i counts through all heads: head i / head_dim. The cache has the layout [pages,
          // layers, 2, heads, page_size, head_dim].
          const auto at = [&](int64_t which) {
            const int64_t in_layer = which * 2 + i / head_dim;
            const int64_t row = ((slot / 8 * 3 + 2) * 4 + in_layer) * 8 + slot % 8;
            return data[static_cast<size_t>(row * head_dim + i % head_dim)];
          };
          REQUIRE(at(0) == qkv[static_cast<size_t>(r * width + part + i)]);
          REQUIRE(at(1) == qkv[static_cast<size_t>(r * width + 2 * part + i)]);
        }
      }
    });
  }
}

// Stores all 65,536 values of a 16-bit dtype, as keys and in reverse order as values.
void CheckE4m3(int64_t head_dim, DType dtype, TestBackend& backend) {
  const int64_t heads = 2, part = heads * head_dim, rows = (65536 + part - 1) / part;
  KvCache cache{.dtype = DType::kF8,
                .pages = (rows + 7) / 8,
                .layers = 2,
                .heads = heads,
                .page_size = 8,
                .head_dim = head_dim};
  std::vector<uint16_t> bits(static_cast<size_t>(rows * 2 * part));
  std::vector<int32_t> slots;
  for (int64_t r = 0; r < rows; ++r) {
    slots.push_back(static_cast<int32_t>(rows - 1 - r));
    for (int64_t i = 0; i < part; ++i) {
      uint16_t* row = bits.data() + r * 2 * part;
      row[i] = static_cast<uint16_t>(r * part + i);
      row[part + i] = static_cast<uint16_t>(65535 - row[i]);
    }
  }
  std::vector<float> exact(bits.size());
  ConvertToF32(bits.data(), dtype, static_cast<int64_t>(bits.size()), exact.data());
  const std::vector<float> expected = RoundedTo(DType::kF8, exact);
  const Tensor kv =
      backend.PutBytes(bits.data(), static_cast<int64_t>(bits.size()) * 2, dtype, {rows, 2 * part});
  const Tensor memory = backend.Poisoned(DType::kF8, {cache.pages * cache.page_elements()});
  cache.data = memory.data;
  StoreKv({.k = kv.Columns(0, part).SplitLast(head_dim),
           .v = kv.Columns(part, 2 * part).SplitLast(head_dim),
           .cache = &cache,
           .layer = 1,
           .slots = backend.Plan(slots)},
          backend.stream());
  const std::vector<float> stored = backend.Floats(memory);
  int64_t nans = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t slot = cache.SlotOffset(slots[static_cast<size_t>(r)]);
    for (int64_t i = 0; i < 2 * part; ++i) {
      const int64_t head = i % part / head_dim;
      const int64_t at = slot + cache.ChunkOffset(1, i >= part, head) + i % head_dim;
      const float want = expected[static_cast<size_t>(r * 2 * part + i)];
      const float got = stored[static_cast<size_t>(at)];
      nans += std::isnan(want);
      if (std::isnan(want) ? !std::isnan(got)
                           : got != want || std::signbit(got) != std::signbit(want)) {
        FAIL(exact[static_cast<size_t>(r * 2 * part + i)] << " became " << got << ", not " << want);
      }
    }
  }
  CHECK(nans > 250);
}

// Heads of 5 values are converted one by one, heads of 64 in units of 8.
TEST_CASE("StoreKv rounds every 16-bit value to a cache of e4m3", "[kv_cache][fp8_cache]") {
  ForEachBackend([](TestBackend& backend) {
    for (DType dtype : backend.float_types()) {
      if (dtype == DType::kF32) continue;
      CheckE4m3(5, dtype, backend);
      CheckE4m3(64, dtype, backend);
    }
  });
}

}  // namespace
}  // namespace quintet
