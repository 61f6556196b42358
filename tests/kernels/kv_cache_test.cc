#include "kernels/kv_cache.h"

#include <cmath>

#include "catch2/catch.hpp"
#include "tests/kernels/place.h"
#include "tests/kernels/random_data.h"

namespace quintet {
namespace {

TEST_CASE("new keys and values land in their slots and nowhere else", "[kv_cache]") {
  KvCache cache{
      .data = nullptr, .pages = 4, .layers = 3, .heads = 2, .page_size = 8, .head_dim = 5};
  const std::vector<float> qkv = RandomData(1).Values(4 * 31);
  const std::vector<int32_t> slots = {0, 31, 8, 13};
  ForEachPlace([&](Place& place) {
    const Tensor memory = place.Poisoned(DType::kF32, {cache.pages * cache.page_elements()});
    cache.data = memory.f32();
    const Tensor packed = place.Put(qkv, {4, 31});
    const auto view = [&](int64_t column) {
      return packed.Columns(column, column + 10).SplitLast(5);
    };
    StoreKv({.k = view(10), .v = view(20), .cache = &cache, .layer = 2, .slots = place.Plan(slots)},
            place.stream());
    const std::vector<float> data = place.Floats(memory);
    size_t written = 0;
    for (float x : data) written += !std::isnan(x);
    CHECK(written == 4 * 2 * 10);
    for (int64_t r = 0; r < 4; ++r) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t c = 0; c < 5; ++c) {
          // [pages, layers, 2, heads, page_size, head_dim] written out
          const int64_t page = slots[static_cast<size_t>(r)] / 8,
                        in_page = slots[static_cast<size_t>(r)] % 8;
          const int64_t key = ((((page * 3 + 2) * 2 + 0) * 2 + h) * 8 + in_page) * 5 + c;
          const int64_t value = ((((page * 3 + 2) * 2 + 1) * 2 + h) * 8 + in_page) * 5 + c;
          REQUIRE(data[static_cast<size_t>(key)] ==
                  qkv[static_cast<size_t>(r * 31 + 10 + h * 5 + c)]);
          REQUIRE(data[static_cast<size_t>(value)] ==
                  qkv[static_cast<size_t>(r * 31 + 20 + h * 5 + c)]);
        }
      }
    }
  });
}

}  // namespace
}  // namespace quintet
