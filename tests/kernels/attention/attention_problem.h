// Attention test problems: shapes and inputs, their placement in memory, and a reference in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/kernels/random_data.h"
#include "tests/kernels/test_backend.h"

namespace quintet::attention_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
  int64_t heads, head_dim;
  std::vector<int32_t> q_lens, kv_lens;
  std::vector<int32_t> positions;  // or empty
  bool causal = false;
  BiasKind bias = BiasKind::kNone;
  bool asymmetric = false;
  float scale = 1.0f;
  // Number of unused elements after each row of the input matrices. If it is a multiple of 8, rows
  // of 16-bit values stay aligned to 16 bytes.
  int64_t gap = 3;
  int64_t saturation = 37;  // saturation of a bias table
  int64_t knots = 9;        // knots of the FIRE network
};

// A dtype, and the number of unused elements after each row of the inputs (gap): with a gap of 8
// rows stay aligned for vector loads, with 3 they do not. Layouts returns the combinations to test
// on a backend. With QUINTET_BRIEF_TESTS it returns f32 only for half of the seeds, and each 16-bit
// dtype with only one of the two gaps, which depends on `seed`.
struct Layout {
  DType dtype;
  int64_t gap;
};
inline std::vector<Layout> Layouts(const TestBackend& backend, uint32_t seed) {
  std::vector<Layout> layouts;
  for (DType dtype : backend.float_types()) {
    if (dtype == DType::kF32) {
      if (!Brief() || seed / 4 % 2 == 0) layouts.push_back({dtype, 3});
      continue;
    }
    const bool fits = (dtype == DType::kBF16) == (seed / 2 % 2 == 0);
    if (!Brief() || !fits) layouts.push_back({dtype, 3});
    if (!Brief() || fits) layouts.push_back({dtype, 8});
  }
  return layouts;
}

inline std::vector<int32_t> Offsets(const std::vector<int32_t>& lens) {
  std::vector<int32_t> offsets(lens.size() + 1, 0);
  std::partial_sum(lens.begin(), lens.end(), offsets.begin() + 1);
  return offsets;
}

// Random inputs of one attention call, rounded to the dtype. Q is a range of columns of one packed
// matrix, K and V are two ranges of another, so a kernel that uses a wrong row stride computes a
// wrong result. `shape` contains the sizes and the kind of position bias.
class Problem {
 public:
  Problem(const Shape& shape, uint32_t seed, DType dtype = DType::kF32)
      : shape(shape),
        dtype(dtype),
        q_offsets(Offsets(shape.q_lens)),
        kv_offsets(Offsets(shape.kv_lens)) {
    RandomData random(seed);
    const int64_t width = shape.heads * shape.head_dim;
    q_stride = 3 * width + shape.gap;
    kv_stride = 2 * width + shape.gap;
    q_data = RoundedTo(dtype, random.Values(q_offsets.back() * q_stride + width, 2.0f));
    kv_data = RoundedTo(dtype, random.Values(kv_offsets.back() * kv_stride + 2 * width, 1.5f));
    bias.kind = shape.bias;
    bias.heads = shape.heads;
    FillBias(random);
  }

  int64_t width() const { return shape.heads * shape.head_dim; }
  const float* Query(int64_t row, int64_t h) const {
    return q_data.data() + row * q_stride + h * shape.head_dim;
  }
  const float* Key(int64_t row, int64_t h) const {
    return kv_data.data() + row * kv_stride + h * shape.head_dim;
  }
  const float* Value(int64_t row, int64_t h) const { return Key(row, h) + width(); }
  int64_t Position(size_t s) const {
    return shape.positions.empty() ? shape.kv_lens[s] - shape.q_lens[s] : shape.positions[s];
  }

  // Returns what is added to the score of a query at position p and a key at position t in head h:
  // the position bias, or -infinity if the mask hides the key. Computed in double.
  double Bias(int64_t h, int64_t p, int64_t t) const {
    if (shape.causal && t > p) return -kInfinity;
    const double delta = static_cast<double>(t - p);
    switch (bias.kind) {
      case BiasKind::kNone:
        return 0.0;
      case BiasKind::kTable:
        return table[static_cast<size_t>(h * (2 * bias.saturation + 1) + bias.saturation +
                                         std::clamp(t - p, -bias.saturation, bias.saturation))];
      case BiasKind::kAlibi:
        if (bias.asymmetric && (h < shape.heads / 2 ? t > p : t < p)) return -kInfinity;
        return -static_cast<double>(table[static_cast<size_t>(h)]) * std::abs(delta);
      case BiasKind::kFire:
        return FireBias(h, p, t);
    }
    return 0.0;
  }

  Shape shape;
  DType dtype;
  std::vector<int32_t> q_offsets, kv_offsets;
  int64_t q_stride, kv_stride;
  std::vector<float> q_data, kv_data;
  PositionBias bias;
  std::vector<float> table, knots, offsets;
  // The column mask as a function: returns whether it hides a key from a query. The arguments are
  // the sequence, the query position and the key position. A null function means no column mask.
  std::function<bool(size_t, int64_t, int64_t)> hidden;

 private:
  void FillBias(RandomData& random) {
    const int64_t heads = shape.heads;
    if (bias.kind == BiasKind::kTable) {
      bias.saturation = shape.saturation;
      table = random.Values(heads * (2 * bias.saturation + 1), 2.0f);
    } else if (bias.kind == BiasKind::kAlibi) {
      for (int64_t h = 0; h < heads; ++h) table.push_back(std::exp2(-static_cast<float>(h + 1)));
      bias.asymmetric = shape.asymmetric;
    } else if (bias.kind == BiasKind::kFire) {
      bias.fire_c = 0.1f;
      bias.fire_threshold = 50.0f;
      const int64_t segments = shape.knots + 1;
      for (int64_t i = 0; i < shape.knots; ++i) {
        knots.push_back(1.98f * static_cast<float>(i) / static_cast<float>(shape.knots) - 0.9f);
      }
      table = random.Values(heads * segments);
      offsets = random.Values(heads * segments);
      for (int64_t h = 0; h < heads; ++h) {  // continuous, like the function of a network
        for (int64_t s = 1; s < segments; ++s) {
          const size_t i = static_cast<size_t>(h * segments + s);
          offsets[i] =
              offsets[i - 1] + (table[i - 1] - table[i]) * knots[static_cast<size_t>(s) - 1];
        }
      }
    }
  }

  double FireBias(int64_t h, int64_t p, int64_t t) const {
    const double c = bias.fire_c, delta = static_cast<double>(p - t);
    const double reach = std::max(static_cast<double>(p), double{bias.fire_threshold});
    const double sign = delta > 0 ? 1 : delta < 0 ? -1 : 0;
    const double f =
        sign * std::log(std::abs(c * delta) + 1) / (std::log(std::abs(c * reach) + 1) + 1e-6);
    size_t s = 0;
    while (s < knots.size() && knots[s] < f) ++s;
    const size_t i = static_cast<size_t>(h) * (knots.size() + 1) + s;
    return double{table[i]} * f + double{offsets[i]};
  }
};

// Reference: computes attention for the problem in double. Returns [q_total, heads, head_dim],
// where q_total is the number of queries of all sequences.
inline std::vector<double> Reference(const Problem& p) {
  const int64_t heads = p.shape.heads, dim = p.shape.head_dim;
  std::vector<double> out(static_cast<size_t>(p.q_offsets.back() * heads * dim), 0.0);
  for (size_t s = 0; s < p.shape.q_lens.size(); ++s) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < p.shape.q_lens[s]; ++i) {
        const float* qr = p.Query(p.q_offsets[s] + i, h);
        std::vector<double> score(static_cast<size_t>(p.shape.kv_lens[s]));
        double max = -kInfinity, sum = 0;
        for (size_t t = 0; t < score.size(); ++t) {
          const float* kr = p.Key(p.kv_offsets[s] + static_cast<int64_t>(t), h);
          for (int64_t c = 0; c < dim; ++c) score[t] += double{qr[c]} * double{kr[c]};
          score[t] = score[t] * double{p.shape.scale} +
                     p.Bias(h, p.Position(s) + i, static_cast<int64_t>(t));
          if (p.hidden && p.hidden(s, p.Position(s) + i, static_cast<int64_t>(t))) {
            score[t] = -kInfinity;
          }
          max = std::max(max, score[t]);
        }
        if (max == -kInfinity) continue;
        double* o = out.data() + ((p.q_offsets[s] + i) * heads + h) * dim;
        for (double x : score) sum += std::exp(x - max);
        for (size_t t = 0; t < score.size(); ++t) {
          const float* vr = p.Value(p.kv_offsets[s] + static_cast<int64_t>(t), h);
          const double weight = std::exp(score[t] - max) / sum;
          for (int64_t c = 0; c < dim; ++c) o[c] += weight * double{vr[c]};
        }
      }
    }
  }
  return out;
}

// A KV cache in host memory that contains the keys and values of a Problem, at slots in random
// order. All other slots contain NaN. Inputs rounds it to `dtype`.
struct CachedKeys {
  CachedKeys(const Problem& p, uint32_t seed) : CachedKeys(p, seed, p.dtype) {}
  CachedKeys(const Problem& p, uint32_t seed, DType dtype) {
    cache.dtype = dtype;
    cache.layers = 3;
    cache.heads = p.shape.heads;
    cache.head_dim = p.shape.head_dim;
    cache.page_size = 16;
    cache.pages = p.kv_offsets.back() / cache.page_size + 2;
    values.assign(static_cast<size_t>(cache.pages * cache.page_elements()), NAN);
    std::vector<int32_t> order(static_cast<size_t>(cache.pages * cache.page_size));
    std::iota(order.begin(), order.end(), 0);
    RandomData random(seed);
    // Shuffle the slots, but only some of them: the order then contains both runs of consecutive
    // slots and jumps.
    for (size_t i = 0; i + 1 < order.size(); i += 1 + static_cast<size_t>(random.Below(7))) {
      std::swap(order[i],
                order[static_cast<size_t>(random.Below(static_cast<int64_t>(order.size())))]);
    }
    stride = *std::max_element(p.shape.kv_lens.begin(), p.shape.kv_lens.end()) + 3;
    slots.assign(p.shape.kv_lens.size() * static_cast<size_t>(stride), -1);
    for (size_t s = 0; s < p.shape.kv_lens.size(); ++s) {
      std::copy(order.begin() + p.kv_offsets[s], order.begin() + p.kv_offsets[s + 1],
                slots.begin() + static_cast<int64_t>(s) * stride);
    }
    for (int64_t row = 0; row < p.kv_offsets.back(); ++row) {
      float* slot = values.data() + cache.SlotOffset(order[static_cast<size_t>(row)]);
      for (int64_t h = 0; h < cache.heads; ++h) {
        std::copy_n(p.Key(row, h), cache.head_dim, slot + cache.ChunkOffset(1, false, h));
        std::copy_n(p.Value(row, h), cache.head_dim, slot + cache.ChunkOffset(1, true, h));
      }
    }
  }

  KvCache cache;
  std::vector<float> values;
  std::vector<int32_t> slots;
  int64_t stride;
};

// The arguments of Attention for a Problem: its inputs, copied to memory that ops of the backend
// can read, and optionally the same keys and values in a KV cache.
struct Inputs {
  Inputs(const Problem& p, const CachedKeys* cached, TestBackend& backend)
      : problem(p), bias(p.bias) {
    const int64_t heads = p.shape.heads;
    q = View(backend.Put(p.q_data, {p.q_offsets.back(), heads, p.shape.head_dim}, p.dtype),
             p.q_stride);
    k = View(backend.Put(p.kv_data, {p.kv_offsets.back(), heads, p.shape.head_dim}, p.dtype),
             p.kv_stride);
    v = k;
    v.data = k.as<char>() + p.width() * DTypeBytes(p.dtype);
    if (bias.kind == BiasKind::kTable) {
      bias.table = backend.Put(p.table, {heads, 2 * bias.saturation + 1});
    } else if (bias.kind == BiasKind::kAlibi) {
      bias.slopes = backend.Put(p.table, {heads});
    } else if (bias.kind == BiasKind::kFire) {
      const int64_t knots = p.shape.knots;
      bias.knots = backend.Put(p.knots, {knots});
      bias.segment_slope = backend.Put(p.table, {heads, knots + 1});
      bias.segment_offset = backend.Put(p.offsets, {heads, knots + 1});
    }
    q_offsets = backend.Plan(p.q_offsets);
    kv_offsets = backend.Plan(p.kv_offsets);
    positions = backend.Plan(p.shape.positions);
    if (cached == nullptr) return;
    cache = cached->cache;
    cache.data =
        backend.Put(cached->values, {static_cast<int64_t>(cached->values.size())}, cache.dtype)
            .data;
    slots = backend.Plan(cached->slots);
    slots_stride = cached->stride;
    kv_lens = backend.Plan(p.shape.kv_lens);
  }

  AttentionArgs Args(bool from_cache) const {
    AttentionArgs args;
    args.q = q;
    args.q_offsets = q_offsets;
    if (from_cache) {
      args.cache = &cache;
      args.layer = 1;
      args.slots = slots.data();
      args.slots_stride = slots_stride;
      args.kv_lens = kv_lens;
    } else {
      args.k = k;
      args.v = v;
      args.kv_offsets = kv_offsets;
    }
    args.q_positions = positions;
    args.causal = problem.shape.causal;
    args.bias = &bias;
    args.scale = problem.shape.scale;
    return args;
  }

  static Tensor View(Tensor t, int64_t stride) {
    t.stride[0] = stride;
    return t;
  }

  const Problem& problem;
  PositionBias bias;
  Tensor q, k, v;
  KvCache cache;
  std::span<const int32_t> q_offsets, kv_offsets, positions, kv_lens, slots;
  int64_t slots_stride = 0;
};

inline int64_t ScratchBytes(const AttentionArgs& args, const Stream& stream) {
  const int64_t rows = std::max(args.q.dim[0], args.cache == nullptr ? args.k.dim[0] : 0);
  return AttentionScratchBytes(rows, args.q.dim[1], args.q.dim[2], stream);
}

// Runs Attention with its output and scratch memory filled with NaN beforehand, so that values
// which the op does not write are noticed. Returns the output [q_total, heads, head_dim], where
// q_total is the number of queries of all sequences.
inline std::vector<float> Run(AttentionArgs args, TestBackend& backend, Stream& stream) {
  const int64_t heads = args.q.dim[1], dim = args.q.dim[2];
  args.out = backend.Poisoned(args.q.dtype, {args.q.dim[0], heads, dim});
  args.scratch = backend.Scratch(ScratchBytes(args, stream));
  Attention(args, stream);
  return backend.Floats(args.out);
}
inline std::vector<float> Run(const AttentionArgs& args, TestBackend& backend) {
  return Run(args, backend, backend.stream());
}

inline double WorstError(const std::vector<float>& got, const std::vector<double>& expected) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]);
    worst = error <= worst ? worst : error;  // NaN counts as an error
  }
  return worst;
}

// Relative error of a whole vector: |got - expected| / |expected|, with Euclidean norms.
inline double RelativeError(const std::vector<float>& got, const std::vector<double>& expected) {
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - expected[i];
    error += difference * difference;
    size += expected[i] * expected[i];
  }
  return error == 0 ? 0 : std::sqrt(error / size);
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Attention rounds the softmax probabilities to the dtype, and later its result. The tolerance is
// 2.5 times the error of one rounding: 2 for these two roundings and a margin of 0.5.
inline double Tolerance(DType dtype) { return 2.5 * RoundingError(dtype); }

}  // namespace quintet::attention_test
