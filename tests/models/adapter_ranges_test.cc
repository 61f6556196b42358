#include "models/adapter_ranges.h"

#include <random>
#include <vector>

#include "tests/catch.h"

namespace quintet {
namespace {

constexpr int32_t kNone = AdapterRange::kNone, kMixed = AdapterRange::kMixed;

std::vector<AdapterRange> Divide(const std::vector<int32_t>& adapters, int64_t min_rows) {
  std::vector<AdapterRange> ranges = {{7, 8, 9}};
  DivideByAdapter(adapters, min_rows, &ranges);
  return ranges;
}

TEST_CASE("CommonAdapter is the adapter of all rows") {
  const auto common = [](std::vector<int32_t> adapters) { return CommonAdapter(adapters); };
  CHECK(common({}) == -1);
  CHECK(common({-1, -1}) == -1);
  CHECK(common({3}) == 3);
  CHECK(common({0, 0, 0}) == 0);
  CHECK(common({0, 0, 1}) == -1);
  CHECK(common({0, -1, 0}) == -1);
}

TEST_CASE("Rows are divided by their adapters", "[adapters]") {
  using Ranges = std::vector<AdapterRange>;
  CHECK(Divide({}, 2) == Ranges{});
  CHECK(Divide({5, 5, 5}, 3) == Ranges{{0, 3, 5}});
  CHECK(Divide({5, 5, 5}, 4) == Ranges{});
  CHECK(Divide({-1, -1, 0, 0, 1}, 2) == Ranges{{0, 2, kNone}, {2, 4, 0}, {4, 5, kMixed}});
  CHECK(Divide({0, 1, 2, 3, 3, 3, 4, -1}, 3) == Ranges{{0, 3, kMixed}, {3, 6, 3}, {6, 8, kMixed}});
}

TEST_CASE("Ranges of adapters cover random rows", "[adapters]") {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t min_rows = 1 + static_cast<int64_t>(random() % 6);
    std::vector<int32_t> adapters;
    while (random() % 12 != 0) {
      adapters.resize(adapters.size() + 1 + random() % 8, static_cast<int32_t>(random() % 4) - 1);
    }
    const std::vector<AdapterRange> ranges = Divide(adapters, min_rows);
    int64_t end = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const AdapterRange& range = ranges[i];
      CHECK(range.begin == end);
      CHECK(range.begin < range.end);
      end = range.end;
      if (range.adapter == kMixed) {
        CHECK((i == 0 || ranges[i - 1].adapter != kMixed));
        continue;
      }
      CHECK(range.end - range.begin >= min_rows);
      for (int64_t r = range.begin; r < range.end; ++r) {
        CHECK(adapters[static_cast<size_t>(r)] == range.adapter);
      }
    }
    CHECK((ranges.empty() || end == static_cast<int64_t>(adapters.size())));
    CHECK((ranges.size() != 1 || ranges[0].adapter != kMixed));
  }
}

}  // namespace
}  // namespace quintet
