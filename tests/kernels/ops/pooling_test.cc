#include "kernels/ops/pooling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/catch.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

constexpr RowPooling kAll[] = {RowPooling::kMean, RowPooling::kWeightedMean,
                               RowPooling::kMeanSqrtLen, RowPooling::kMax};

// The formula of RowPooling for one column of the rows of a segment.
float Expected(const std::vector<float>& x, int64_t d, const PoolSegment& segment, int64_t column) {
  double sum = 0.0, weights = 0.0;
  float most = -std::numeric_limits<float>::infinity();
  for (int64_t i = segment.begin; i < segment.end; ++i) {
    const float value = x[static_cast<size_t>(i * d + column)];
    const bool weighted = segment.pooling == RowPooling::kWeightedMean;
    const double weight =
        weighted ? static_cast<double>(segment.first_weight + i - segment.begin) : 1.0;
    sum += weight * value;
    weights += weight;
    most = std::max(most, value);
  }
  if (segment.pooling == RowPooling::kMax) return most;
  return static_cast<float>(
      sum / (segment.pooling == RowPooling::kMeanSqrtLen ? std::sqrt(weights) : weights));
}

void CheckPooling(TestBackend& backend, int64_t rows, int64_t d,
                  const std::vector<PoolSegment>& segments, int64_t y_rows) {
  const std::vector<float> x = RandomData(1).Values(rows * d);
  const Tensor y = backend.Poisoned(DType::kF32, {y_rows, d});
  PoolRows({.x = backend.Put(x, {rows, d}), .segments = backend.Plan(segments), .y = y},
           backend.stream());
  const std::vector<float> pooled = backend.Floats(y);
  std::vector<bool> written(static_cast<size_t>(y_rows), false);
  int64_t wrong = 0;
  for (const PoolSegment& segment : segments) {
    written[static_cast<size_t>(segment.y_row)] = true;
    for (int64_t c = 0; c < d; ++c) {
      wrong +=
          pooled[static_cast<size_t>(segment.y_row * d + c)] == Expected(x, d, segment, c) ? 0 : 1;
    }
  }
  for (int64_t r = 0; r < y_rows; ++r) {
    for (int64_t c = 0; c < d && !written[static_cast<size_t>(r)]; ++c) {
      wrong += std::isnan(pooled[static_cast<size_t>(r * d + c)]) ? 0 : 1;
    }
  }
  INFO(rows << "x" << d << ", " << segments.size() << " segments");
  CHECK(wrong == 0);
}

TEST_CASE("pooled rows equal the formula to the bit, and other rows of y stay untouched",
          "[pooling]") {
  ForEachBackend([](TestBackend& backend) {
    for (int64_t d : Pick<int64_t>({1, 3, 64, 100, 129, 768}, {3, 129})) {
      for (RowPooling pooling : kAll) {
        // Segments of 1 to 21 rows, some of which overlap; y has a gap after every row.
        std::vector<PoolSegment> segments;
        int32_t begin = 0, most = 0;
        for (int32_t i = 0; i < 12; ++i) {
          const int32_t end = begin + 1 + 5 * i % 21;
          segments.push_back({begin, end, 2 * (11 - i), 1 + i % 4, pooling});
          most = std::max(most, end);
          begin = i % 3 == 0 ? begin : end;
        }
        CheckPooling(backend, most, d, segments, 24);
      }
    }
  });
}

TEST_CASE("pooling reads long segments, and many segments in one call", "[pooling]") {
  ForEachBackend([](TestBackend& backend) {
    CheckPooling(backend, 3001, 40, {{1, 3001, 0, 2, RowPooling::kWeightedMean}}, 1);
    std::vector<PoolSegment> segments;
    for (int32_t i = 0; i < 2000; ++i) {
      segments.push_back({i, i + 2, i, 1, kAll[static_cast<size_t>(i) % 4]});
    }
    CheckPooling(backend, 2001, 33, segments, 2000);
  });
}

TEST_CASE("pooling of one row copies it, infinities and signed zeros included", "[pooling]") {
  ForEachBackend([](TestBackend& backend) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    const std::vector<float> x = {-0.0f, 0.0f, kInf, -kInf, 1e-45f, 3e38f};
    const std::vector<PoolSegment> segments = {{.begin = 0, .end = 1, .y_row = 0}};
    const Tensor y = backend.Poisoned(DType::kF32, {1, 6});
    PoolRows({.x = backend.Put(x, {1, 6}), .segments = backend.Plan(segments), .y = y},
             backend.stream());
    const std::vector<float> pooled = backend.Floats(y);
    CHECK(pooled == x);
    CHECK(std::signbit(pooled[0]));
    CHECK_FALSE(std::signbit(pooled[1]));
  });
}

TEST_CASE("pooling of no segments does nothing", "[pooling]") {
  ForEachBackend([](TestBackend& backend) {
    const Tensor y = backend.Poisoned(DType::kF32, {1, 4});
    const Tensor x = backend.Put(std::vector<float>{1, 2, 3, 4}, {1, 4});
    PoolRows({.x = x, .segments = {}, .y = y}, backend.stream());
    CHECK(std::isnan(backend.Floats(y)[0]));
  });
}

}  // namespace
}  // namespace quintet
