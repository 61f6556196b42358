#include "models/weights/position.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/base/status_macros.h"

namespace quintet {
namespace {

// Copies the values to a new f32 tensor: [values.size()] if rows is 1, otherwise
// [rows, values.size() / rows]. Appends the tensor's buffer to `storage`.
absl::StatusOr<Tensor> Store(const std::vector<float>& values, int64_t rows,
                             std::vector<Buffer>* storage) {
  QT_ASSIGN_OR_RETURN(Buffer buffer,
                      Buffer::Allocate(static_cast<int64_t>(values.size() * sizeof(float))));
  if (!values.empty()) std::memcpy(buffer.data(), values.data(), values.size() * sizeof(float));
  const int64_t columns = static_cast<int64_t>(values.size()) / rows;
  const Tensor table = rows == 1 ? Tensor::F32(buffer.as<float>(), {columns})
                                 : Tensor::F32(buffer.as<float>(), {rows, columns});
  storage->push_back(std::move(buffer));
  return table;
}

// Times returns a * b and Plus returns a + b, each rounded to f32. They compute in double, because
// compilers could otherwise fuse a product and a sum into one multiply-add, which rounds only once.
float Times(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * static_cast<double>(b));
}
float Plus(float a, float b) {
  return static_cast<float>(static_cast<double>(a) + static_cast<double>(b));
}

// Natural logarithm of x > 0 in f32 arithmetic, within 1 ulp, built to round as torch.log does on a
// CPU. x = m 2^e with m in [2/3, 4/3); with r = m - 1, log m = r - r^2 / 2 + r^3 q(r), where q is a
// minimax polynomial of degree 7. Of 2.56 M quotients of small integers, all but 58 equal torch.log
// to the bit; a correctly rounded logarithm differs from torch.log in 2 % of them.
float LogAsTorch(float x) {
  constexpr float kLow = 2.0f / 3.0f, kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  constexpr float kQ[] = {-0x1.0803ccp-3f, 0x1.1e66b4p-3f, -0x1.f31218p-4f, 0x1.1ed718p-3f,
                          -0x1.559dc2p-3f, 0x1.99d028p-3f, -0x1.fffefp-3f,  0x1.555506p-2f};
  int exponent = 0;
  float m = std::frexp(x, &exponent);  // [1/2, 1)
  if (m < kLow) {
    m *= 2.0f;
    --exponent;
  }
  const float r = m - 1.0f;  // exact
  float p = 0.0f;
  for (const float coefficient : kQ) p = Plus(Times(p, r), coefficient);
  p = Plus(Times(p, r), -0.5f);
  const float log_m = Plus(r, Times(Times(p, r), r));
  const float e = static_cast<float>(exponent);
  return Plus(Times(e, kLn2High), Plus(log_m, Times(e, kLn2Low)));
}

// Returns T5's bucket, out of n buckets, of a distance >= 0: one bucket per distance below n / 2,
// then logarithmic up to max_distance. If a distance is exactly on a bucket boundary (such as 12
// for n = 17 and max_distance = 27), the rounding of the logarithm decides. Every operation here
// therefore rounds as in the reference, torch in f32 on a CPU.
int64_t BucketOfDistance(int64_t distance, int64_t n, int64_t max_distance) {
  const int64_t exact = n / 2;
  if (distance < exact) return distance;
  const float ratio =
      LogAsTorch(static_cast<float>(distance) / static_cast<float>(exact)) /
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const auto large = exact + static_cast<int64_t>(Times(ratio, static_cast<float>(n - exact)));
  return std::min(n - 1, large);
}

std::vector<float> PowerOfTwoSlopes(int64_t n) {
  std::vector<float> slopes;
  for (int64_t h = 0; h < n; ++h) {
    slopes.push_back(
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(n))));
  }
  return slopes;
}

// FIRE's network fire_out relu(fire_in f + fire_in_bias) + fire_out_bias, a piecewise linear
// function of its scalar input f, as a table of its segments. A knot is a value of f where a hidden
// unit turns on or off. In segment s, between knots s - 1 and s, head h has the bias slope[h, s] *
// f + offset[h, s].
struct FireSegments {
  std::vector<float> knots;   // [segments - 1], ascending
  std::vector<float> slope;   // [heads, segments]
  std::vector<float> offset;  // [heads, segments]
};

std::vector<float> FireKnots(const PositionParameters& p) {
  std::vector<float> knots;
  for (int64_t u = 0; u < p.fire_in.dim[0]; ++u) {
    const double knot = -static_cast<double>(p.fire_in_bias.f32()[u]) / p.fire_in.f32()[u];
    // Drop a knot that is not finite: either the hidden unit has slope 0 and never switches, or it
    // would switch at a value of f that never occurs.
    if (std::isfinite(static_cast<float>(knot))) knots.push_back(static_cast<float>(knot));
  }
  std::sort(knots.begin(), knots.end());
  knots.erase(std::unique(knots.begin(), knots.end()), knots.end());
  return knots;
}

FireSegments TabulateFire(const PositionParameters& p) {
  const int64_t width = p.fire_in.dim[0], heads = p.fire_out.dim[0];
  FireSegments out;
  out.knots = FireKnots(p);
  const size_t segments = out.knots.size() + 1;
  out.slope.resize(static_cast<size_t>(heads) * segments);
  out.offset.resize(out.slope.size());
  for (size_t s = 0; s < segments; ++s) {
    // `inside`: a value of the network's input f within the segment. A hidden unit that is positive
    // at `inside` is positive in the whole segment.
    double inside = 0.0;
    if (segments > 1) {
      const double left = s == 0 ? 0.0 : out.knots[s - 1];
      const double right = s + 1 == segments ? 0.0 : out.knots[s];
      inside = s == 0              ? right - std::max(1.0, std::fabs(right))
               : s + 1 == segments ? left + std::max(1.0, std::fabs(left))
                                   : 0.5 * (left + right);
    }
    for (int64_t h = 0; h < heads; ++h) {
      double slope = 0.0, offset = p.fire_out_bias.f32()[h];
      for (int64_t u = 0; u < width; ++u) {
        const double in = p.fire_in.f32()[u], bias = p.fire_in_bias.f32()[u];
        if (in * inside + bias <= 0.0) continue;
        const double weight = p.fire_out.f32()[h * width + u];
        slope += weight * in;
        offset += weight * bias;
      }
      const size_t at = static_cast<size_t>(h) * segments + s;
      out.slope[at] = static_cast<float>(slope);
      out.offset[at] = static_cast<float>(offset);
    }
  }
  return out;
}

absl::StatusOr<PositionBias> BuildBucketBias(const ModelConfig& config, bool causal,
                                             const Tensor& parameters,
                                             std::vector<Buffer>* storage) {
  const BucketMap map = MapBuckets(config.bias_buckets, config.bias_max_distance, causal);
  std::vector<float> table(static_cast<size_t>(config.heads) * map.buckets.size());
  for (int64_t h = 0; h < config.heads; ++h) {
    for (size_t i = 0; i < map.buckets.size(); ++i) {
      table[static_cast<size_t>(h) * map.buckets.size() + i] =
          parameters.f32()[map.buckets[i] * config.heads + h];
    }
  }
  QT_ASSIGN_OR_RETURN(const Tensor stored, Store(table, config.heads, storage));
  PositionBias bias;
  bias.kind = BiasKind::kTable;
  bias.heads = config.heads;
  bias.table = Tensor::F32(stored.f32(), {config.heads, 2 * map.saturation + 1});
  bias.saturation = map.saturation;
  return bias;
}

absl::StatusOr<PositionBias> BuildFireBias(const ModelConfig& config,
                                           const PositionParameters& parameters,
                                           std::vector<Buffer>* storage) {
  const FireSegments segments = TabulateFire(parameters);
  const int64_t knots = static_cast<int64_t>(segments.knots.size());
  QT_ASSIGN_OR_RETURN(const Tensor stored_knots, Store(segments.knots, 1, storage));
  QT_ASSIGN_OR_RETURN(const Tensor slope, Store(segments.slope, config.heads, storage));
  QT_ASSIGN_OR_RETURN(const Tensor offset, Store(segments.offset, config.heads, storage));
  PositionBias bias;
  bias.kind = BiasKind::kFire;
  bias.heads = config.heads;
  bias.fire_c = *parameters.fire_c.f32();
  bias.fire_threshold =
      std::fabs(*parameters.fire_multiplier.f32() * *parameters.fire_length.f32());
  bias.knots = Tensor::F32(stored_knots.f32(), {knots});
  bias.segment_slope = Tensor::F32(slope.f32(), {config.heads, knots + 1});
  bias.segment_offset = Tensor::F32(offset.f32(), {config.heads, knots + 1});
  return bias;
}

}  // namespace

BucketMap MapBuckets(int64_t buckets, int64_t max_distance, bool causal) {
  const int64_t n = causal ? buckets : buckets / 2;
  std::vector<int32_t> near;  // bucket of distance 0, 1, 2, .. until the last bucket is reached
  do {
    near.push_back(
        static_cast<int32_t>(BucketOfDistance(static_cast<int64_t>(near.size()), n, max_distance)));
  } while (near.back() < n - 1);
  BucketMap map;
  map.saturation = static_cast<int64_t>(near.size()) - 1;
  map.buckets.resize(static_cast<size_t>(2 * map.saturation + 1));
  for (int64_t r = -map.saturation; r <= map.saturation; ++r) {
    const auto distance = static_cast<size_t>(std::abs(r));
    // In bidirectional stacks keys after the query (r > 0) have a second set of n buckets. Causal
    // stacks mask these keys, so their bucket does not matter.
    const int32_t bucket = r <= 0   ? near[distance]
                           : causal ? 0
                                    : static_cast<int32_t>(n) + near[distance];
    map.buckets[static_cast<size_t>(r + map.saturation)] = bucket;
  }
  return map;
}

std::vector<float> AlibiSlopes(int64_t heads, bool asymmetric) {
  if (asymmetric) {
    std::vector<float> slopes = AlibiSlopes(heads / 2, false);
    slopes.insert(slopes.end(), slopes.begin(), slopes.begin() + heads / 2);
    return slopes;
  }
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<float> slopes = PowerOfTwoSlopes(power);
  const std::vector<float> finer = PowerOfTwoSlopes(2 * power);
  for (int64_t h = power; h < heads; ++h)
    slopes.push_back(finer[static_cast<size_t>(2 * (h - power))]);
  return slopes;
}

absl::StatusOr<PositionBias> BuildPositionBias(const ModelConfig& config, bool causal,
                                               const PositionParameters& parameters,
                                               std::vector<Buffer>* storage) {
  switch (config.position) {
    case PositionEncoding::kT5:
      return BuildBucketBias(config, causal, parameters.buckets, storage);
    case PositionEncoding::kFire:
      return BuildFireBias(config, parameters, storage);
    case PositionEncoding::kAlibi: {
      QT_ASSIGN_OR_RETURN(const Tensor slopes,
                          Store(AlibiSlopes(config.heads, config.alibi_asymmetric), 1, storage));
      PositionBias bias;
      bias.kind = BiasKind::kAlibi;
      bias.heads = config.heads;
      bias.slopes = slopes;
      bias.asymmetric = config.alibi_asymmetric;
      return bias;
    }
    case PositionEncoding::kNone:
    case PositionEncoding::kRope:
    case PositionEncoding::kLearned:
      break;
  }
  return PositionBias();
}

absl::StatusOr<PositionBias> BuildGlobalBias(const ModelConfig& config,
                                             const PositionParameters& parameters,
                                             std::vector<Buffer>* storage) {
  if (config.global_block == 0) return PositionBias();
  return BuildBucketBias(config, /*causal=*/false, parameters.global_buckets, storage);
}

}  // namespace quintet
