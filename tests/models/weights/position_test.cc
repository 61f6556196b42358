#include "models/weights/position.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <string>

#include "tests/catch.h"

namespace quintet {
namespace {

int32_t Bucket(const BucketMap& map, int64_t relative) {
  const int64_t r = std::clamp(relative, -map.saturation, map.saturation);
  return map.buckets[static_cast<size_t>(r + map.saturation)];
}

// causal_first and both_first: the first distance of each logarithmic bucket, as published for 32
// buckets and max_distance 128.
TEST_CASE("T5's buckets start at the distances of the paper's code", "[position]") {
  const BucketMap causal = MapBuckets(32, 128, true);
  CHECK(causal.saturation == 113);
  const int64_t causal_first[] = {16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
  for (int64_t d = 0; d < 300; ++d) {
    int32_t expected = static_cast<int32_t>(std::min<int64_t>(d, 15));
    for (int32_t i = 0; i < 16; ++i) {
      if (d >= causal_first[i]) expected = 16 + i;
    }
    INFO(d);
    CHECK(Bucket(causal, -d) == expected);
    CHECK(Bucket(causal, d) == 0);
  }
  const BucketMap both = MapBuckets(32, 128, false);
  CHECK(both.saturation == 91);
  const int64_t both_first[] = {8, 12, 16, 23, 32, 46, 64, 91};
  for (int64_t d = 0; d < 300; ++d) {
    int32_t expected = static_cast<int32_t>(std::min<int64_t>(d, 7));
    for (int32_t i = 0; i < 8; ++i) {
      if (d >= both_first[i]) expected = 8 + i;
    }
    INFO(d);
    CHECK(Bucket(both, -d) == expected);
    CHECK(Bucket(both, d) == (d == 0 ? 0 : 16 + expected));
  }
}

// The file is written by tests/data/t5_buckets/record.py. It contains, among others, all settings
// whose bucket boundaries depend on the rounding of the logarithm.
TEST_CASE("T5's buckets equal those that torch computes", "[position]") {
  std::ifstream file(QUINTET_SOURCE_DIR "/tests/data/t5_buckets/buckets.txt");
  int settings = 0;
  bool has_17_27 = false;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    INFO(line);
    std::istringstream words(line);
    int64_t buckets = 0, max_distance = 0;
    std::string direction;
    words >> buckets >> max_distance >> direction;
    const bool causal = direction == "causal";
    REQUIRE((causal || direction == "both"));
    const BucketMap map = MapBuckets(buckets, max_distance, causal);
    std::vector<int32_t> expected;  // [distance]
    int64_t distance = 0;
    int32_t bucket = 0;
    for (char colon = 0; words >> distance >> colon >> bucket;) {
      expected.resize(static_cast<size_t>(distance), expected.empty() ? 0 : expected.back());
      expected.push_back(bucket);
    }
    REQUIRE(!expected.empty());
    expected.resize(static_cast<size_t>(max_distance) + 2, expected.back());
    for (size_t d = 0; d < expected.size(); ++d) {
      INFO(d);
      const auto relative = static_cast<int64_t>(d);
      REQUIRE(Bucket(map, -relative) == expected[d]);
      const int32_t after = causal || d == 0 ? 0 : static_cast<int32_t>(buckets / 2) + expected[d];
      REQUIRE(Bucket(map, relative) == after);
    }
    ++settings;
    has_17_27 = has_17_27 || (buckets == 17 && max_distance == 27);
  }
  CHECK(settings > 250);
  CHECK(has_17_27);
}

TEST_CASE("Unusual bucket counts: buckets are in range and the last one is used", "[position]") {
  for (int64_t buckets : {4, 5, 7, 16, 33, 1000}) {
    for (int64_t distance : {buckets / 2 + 1, buckets * 3, int64_t{65536}}) {
      for (bool causal : {true, false}) {
        INFO(buckets << " " << distance << " " << causal);
        const BucketMap map = MapBuckets(buckets, distance, causal);
        CHECK(map.saturation <= std::max(distance, buckets));
        const auto [least, most] = std::minmax_element(map.buckets.begin(), map.buckets.end());
        CHECK(*least == 0);
        CHECK(*most == (causal ? buckets : buckets / 2 * 2) - 1);
      }
    }
  }
}

TEST_CASE("The bias table contains each head's bucket values", "[position]") {
  ModelConfig config;
  config.heads = 3;
  std::vector<float> values(32 * 3);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  PositionParameters parameters;
  parameters.buckets = Tensor::F32(values.data(), {32, 3});
  std::vector<Buffer> storage;
  const auto bias = BuildPositionBias(config, true, parameters, &storage);
  REQUIRE(bias.ok());
  REQUIRE(bias->kind == BiasKind::kTable);
  CHECK(bias->heads == 3);
  REQUIRE(bias->saturation == 113);
  REQUIRE(bias->table.dim[1] == 227);
  for (int64_t h = 0; h < 3; ++h) {
    CHECK(bias->table.f32()[h * 227 + 113] == static_cast<float>(h));           // k = q
    CHECK(bias->table.f32()[h * 227 + 113 - 5] == static_cast<float>(15 + h));  // k = q - 5
    CHECK(bias->table.f32()[h * 227] == static_cast<float>(31 * 3 + h));        // k << q
    CHECK(bias->table.f32()[h * 227 + 226] == static_cast<float>(h));           // k > q
  }
}

TEST_CASE("ALiBi slopes, symmetric and asymmetric", "[position]") {
  CHECK(AlibiSlopes(1, false) == std::vector<float>{1.0f / 256});
  CHECK(AlibiSlopes(4, false) == std::vector<float>{.25f, .0625f, .015625f, .00390625f});
  CHECK(AlibiSlopes(6, false) ==
        std::vector<float>{.25f, .0625f, .015625f, .00390625f, .5f, .125f});
  CHECK(AlibiSlopes(4, true) == std::vector<float>{.0625f, .00390625f, .0625f, .00390625f});
  ModelConfig config;
  config.heads = 4;
  config.position = PositionEncoding::kAlibi;
  config.alibi_asymmetric = true;
  std::vector<Buffer> storage;
  const auto bias = BuildPositionBias(config, false, {}, &storage);
  REQUIRE(bias.ok());
  CHECK(bias->kind == BiasKind::kAlibi);
  CHECK(bias->asymmetric);
  CHECK(bias->slopes.f32()[2] == .0625f);
}

TEST_CASE("Position encodings without a bias give kind kNone", "[position]") {
  std::vector<Buffer> storage;
  for (PositionEncoding p :
       {PositionEncoding::kNone, PositionEncoding::kRope, PositionEncoding::kLearned}) {
    ModelConfig config;
    config.heads = 2;
    config.position = p;
    CHECK(BuildPositionBias(config, false, {}, &storage)->kind == BiasKind::kNone);
  }
}

struct FireNetwork {
  std::vector<float> in, in_bias, out, out_bias;
  float c = 0.1f, length = 128.0f, multiplier = -0.5f;

  PositionParameters Parameters() {
    const auto width = static_cast<int64_t>(in.size()),
               heads = static_cast<int64_t>(out_bias.size());
    PositionParameters p;
    p.fire_in = Tensor::F32(in.data(), {width, 1});
    p.fire_in_bias = Tensor::F32(in_bias.data(), {width});
    p.fire_out = Tensor::F32(out.data(), {heads, width});
    p.fire_out_bias = Tensor::F32(out_bias.data(), {heads});
    p.fire_c = Tensor::F32(&c, {});
    p.fire_length = Tensor::F32(&length, {});
    p.fire_multiplier = Tensor::F32(&multiplier, {});
    return p;
  }
  double Evaluate(size_t head, double f) const {
    double sum = out_bias[head];
    for (size_t u = 0; u < in.size(); ++u) {
      sum += out[head * in.size() + u] * std::max(0.0, in[u] * f + in_bias[u]);
    }
    return sum;
  }
};

void CheckFire(FireNetwork network) {
  ModelConfig config;
  config.heads = static_cast<int64_t>(network.out_bias.size());
  config.fire_width = static_cast<int64_t>(network.in.size());
  config.position = PositionEncoding::kFire;
  std::vector<Buffer> storage;
  const auto bias = BuildPositionBias(config, false, network.Parameters(), &storage);
  REQUIRE(bias.ok());
  REQUIRE(bias->kind == BiasKind::kFire);
  CHECK(bias->fire_threshold == 64.0f);
  const int64_t segments = bias->segment_slope.dim[1];
  REQUIRE(bias->knots.dim[0] == segments - 1);
  const float* knots = bias->knots.as<float>();
  CHECK(std::is_sorted(knots, knots + segments - 1));
  std::vector<float> points = {-1e4f, -3.0f, -1.0f, 0.0f, 1e-6f, 1.0f, 3.0f, 1e4f};
  for (int i = -300; i <= 300; ++i) points.push_back(static_cast<float>(i) / 100.0f);
  for (int64_t s = 0; s + 1 < segments; ++s) points.push_back(knots[s]);
  for (float f : points) {
    const int64_t s = std::lower_bound(knots, knots + segments - 1, f) - knots;
    for (int64_t h = 0; h < config.heads; ++h) {
      const double expected = network.Evaluate(static_cast<size_t>(h), f);
      const float got = bias->segment_slope.f32()[h * segments + s] * f +
                        bias->segment_offset.f32()[h * segments + s];
      INFO(f);
      CHECK(got == Approx(expected).epsilon(1e-5).margin(1e-5));
    }
  }
}

TEST_CASE("FIRE's tabulated network equals the network", "[position]") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (size_t width : {1, 2, 32}) {
    FireNetwork network;
    for (size_t u = 0; u < width; ++u) {
      network.in.push_back(normal(random));
      network.in_bias.push_back(normal(random));
    }
    for (size_t i = 0; i < 3 * width; ++i) network.out.push_back(normal(random));
    network.out_bias = {normal(random), normal(random), normal(random)};
    CheckFire(network);
  }
}

TEST_CASE("FIRE's tabulated network equals the network with degenerate hidden units",
          "[position]") {
  FireNetwork network;
  // The hidden units of the FIRE network. Units 0 and 1 have slope 0: unit 0 is never active, unit
  // 1 always is. The knot of a unit is the point at which it becomes active. Units 2 and 3 have
  // their knots at 0, and the knot of unit 4 overflows f32. Unit 5 has slope -0.
  network.in = {0.0f, 0.0f, 1.0f, -2.0f, 1e-30f, -0.0f};
  network.in_bias = {-1.0f, 1.0f, 0.0f, 0.0f, 1e30f, 0.0f};
  network.out = {1, 2, 3, 4, 0, 6};
  network.out_bias = {0.5f};
  CheckFire(network);
}

}  // namespace
}  // namespace quintet
