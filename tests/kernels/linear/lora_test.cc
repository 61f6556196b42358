// Tests what LoRA adapters add to the output of a linear layer, against a reference in double.
#include "kernels/linear/lora.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/linear/weight.h"
#include "tests/catch.h"
#include "tests/kernels/linear/linear_weights.h"
#include "tests/kernels/linear/random_adapters.h"
#include "tests/kernels/test_backend.h"

namespace quintet {
namespace {

enum class LoraNorm { kNone, kRms, kLayer };
enum class LoraOutput { kF32, kFactors, kOverwrite, kScatter, kCache };

struct LoraCase {
  int64_t rows, k, parts, part_columns;
  LoraOutput output = LoraOutput::kF32;
  LoraNorm norm = LoraNorm::kNone;
  bool rounded_x = false;  // x has the dtype of the factors
};

std::vector<double> Normalised(const std::vector<float>& x, const LoraCase& c,
                               const std::vector<float>& gamma, const std::vector<float>& beta) {
  std::vector<double> y(x.begin(), x.end());
  if (c.norm == LoraNorm::kNone) return y;
  for (int64_t r = 0; r < c.rows; ++r) {
    double* const row = y.data() + r * c.k;
    double mean = 0.0, square = 0.0;
    for (int64_t j = 0; j < c.k; ++j) mean += row[j] / static_cast<double>(c.k);
    if (c.norm == LoraNorm::kRms) mean = 0.0;
    for (int64_t j = 0; j < c.k; ++j) square += (row[j] - mean) * (row[j] - mean);
    const double scale = 1.0 / std::sqrt(square / static_cast<double>(c.k) + kEps);
    for (int64_t j = 0; j < c.k; ++j) {
      row[j] = (row[j] - mean) * scale * gamma[j] + (c.norm == LoraNorm::kLayer ? beta[j] : 0.0f);
    }
  }
  return y;
}

// Where a call of AddLora stores its outputs in memory.
struct Places {
  AddLoraArgs args;
  Tensor memory;
  // Index in `memory` of each output element; -1: it is not stored.
  std::vector<int64_t> index;
};

Places MakePlaces(const LoraCase& c, const std::vector<float>& before, DType dtype, KvCache* cache,
                  TestBackend& backend) {
  const int64_t n = c.parts * c.part_columns;
  Places places;
  places.index.resize(static_cast<size_t>(c.rows * n));
  const auto set = [&](auto index_of) {
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t column = 0; column < n; ++column) {
        places.index[static_cast<size_t>(r * n + column)] = index_of(r, column);
      }
    }
  };
  const auto size = static_cast<int64_t>(before.size());
  if (c.output == LoraOutput::kScatter) {
    const int64_t chunk = c.part_columns / 2;
    std::vector<int64_t> row_offset, chunk_offset;
    for (int64_t r = 0; r < c.rows; ++r) row_offset.push_back((c.rows - 1 - r) * chunk);
    for (int64_t i = 0; i < n / chunk; ++i) chunk_offset.push_back(i * c.rows * chunk);
    places.memory = backend.Put(before, {size}, dtype);
    places.args.scatter = {places.memory.data, dtype, backend.Plan(row_offset).data(),
                           backend.Plan(chunk_offset).data(), chunk};
    set([&](int64_t r, int64_t column) {
      return row_offset[r] + chunk_offset[column / chunk] + column % chunk;
    });
    return places;
  }
  const int64_t stride = n + 16;
  places.memory = backend.Put(before, {size}, dtype);
  Tensor y = Tensor::Dense(places.memory.data, dtype, {c.rows, n});
  y.stride[0] = stride;
  places.args.y = y;
  places.args.overwrite = c.output == LoraOutput::kOverwrite;
  set([&](int64_t r, int64_t column) { return r * stride + column; });
  if (c.output != LoraOutput::kCache) return places;
  // The KV cache follows y in the same memory.
  const int64_t begin = c.rows * stride, inner = n / 3;
  *cache = {.data = static_cast<char*>(places.memory.data) + begin * DTypeBytes(dtype),
            .dtype = dtype,
            .pages = (c.rows + 3) / 4,
            .layers = 2,
            .heads = inner / 8,
            .page_size = 4,
            .head_dim = 8};
  std::vector<int32_t> slots;
  for (int64_t r = 0; r < c.rows; ++r) slots.push_back(r == 3 ? -1 : static_cast<int32_t>(r));
  places.args.kv = {.cache = cache, .layer = 1, .slots = backend.Plan(slots)};
  set([&](int64_t r, int64_t column) -> int64_t {
    if (column < inner) return r * stride + column;
    if (slots[r] < 0) return -1;
    const int64_t head = (column - inner) % inner / 8;
    return begin + cache->SlotOffset(slots[r]) + cache->ChunkOffset(1, column >= 2 * inner, head) +
           column % 8;
  });
  return places;
}

void Check(const LoraCase& c, DType dtype, TestBackend& backend) {
  const bool on_cpu = backend.device() == nullptr;
  if (on_cpu && (c.norm != LoraNorm::kNone || c.output == LoraOutput::kCache)) return;
  const int64_t n = c.parts * c.part_columns;
  const Adapters adapters({c.parts, c.part_columns, c.k}, dtype, backend);
  const DType x_type = c.rounded_x ? dtype : DType::kF32;
  const std::vector<float> x = RoundedTo(x_type, Random(c.rows * c.k, 1, 2.0f));
  const std::vector<float> gamma = Random(c.k, 2), beta = Random(c.k, 3);
  const std::vector<int32_t> rows = AdapterOfRows(c.rows);
  const bool f32 = c.output == LoraOutput::kF32 || c.output == LoraOutput::kOverwrite;
  const DType y_type = f32 ? DType::kF32 : dtype;
  // `before` has space for y with its row stride, and for a KV cache of two layers.
  const std::vector<float> before =
      RoundedTo(y_type, Random(c.rows * (n + 16) + 2 * 2 * (c.rows + 4) * n, 4));
  KvCache cache;
  Places places = MakePlaces(c, before, y_type, &cache, backend);
  AddLoraArgs& args = places.args;
  args.x = backend.Put(x, {c.rows, c.k}, x_type);
  if (c.norm != LoraNorm::kNone) args.norm_gamma = backend.Put(gamma, {c.k});
  if (c.norm == LoraNorm::kLayer) args.norm_beta = backend.Put(beta, {c.k});
  args.norm_eps = kEps;
  args.weight = &adapters.weight();
  args.adapters = backend.Plan(rows);
  args.scratch = backend.Scratch(LoraScratchBytes(adapters.weight(), c.rows));
  AddLora(args, backend.stream());

  const std::vector<double> input = Normalised(x, c, gamma, beta);
  std::vector<double> expected(before.begin(), before.end());
  double most = 0.0;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t column = 0; column < n; ++column) {
      const int64_t at = places.index[static_cast<size_t>(r * n + column)];
      if (at < 0) continue;
      const double correction = adapters.Correction(rows[r], input.data() + r * c.k, column);
      if (args.overwrite) expected[at] = 0.0;
      expected[at] += correction;
      most = std::max(most, std::fabs(correction));
    }
  }
  const std::vector<float> got = backend.Floats(places.memory);
  double error = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double own = std::fabs(expected[i] - got[i]);
    if (!(own <= error)) error = own;
  }
  INFO("rows " << c.rows << " k " << c.k << " parts " << c.parts << " of " << c.part_columns
               << ", output " << static_cast<int>(c.output) << ", norm " << static_cast<int>(c.norm)
               << ", dtype " << DTypeName(dtype));
  CHECK(most > 0.1);
  CHECK(error <= (dtype == DType::kF32 ? 1e-5 : 4 * RoundingError(dtype)) * std::max(most, 4.0));
}

TEST_CASE("LoRA corrections equal a reference in double", "[linear][lora]") {
  ForEachBackend([](TestBackend& backend) {
    for (const DType dtype : backend.float_types()) {
      for (const int64_t rows : Pick<int64_t>({5, 17, 64, 133, 200, 300}, {5, 200})) {
        for (const LoraOutput output :
             {LoraOutput::kF32, LoraOutput::kFactors, LoraOutput::kOverwrite, LoraOutput::kScatter,
              LoraOutput::kCache}) {
          Check({rows, 96, 3, 48, output}, dtype, backend);
          Check({rows, 160, 3, 64, output, LoraNorm::kNone, true}, dtype, backend);
          Check({rows, 144, 3, 32, output, LoraNorm::kRms}, dtype, backend);
          Check({rows, 80, 1, 40, output == LoraOutput::kCache ? LoraOutput::kF32 : output}, dtype,
                backend);
        }
        Check({rows, 51, 2, 30}, dtype, backend);  // no vectors, no tiles
        Check({rows, 64, 3, 16, LoraOutput::kF32, LoraNorm::kRms}, dtype, backend);
        Check({rows, 64, 3, 16, LoraOutput::kCache, LoraNorm::kLayer}, dtype, backend);
        Check({rows, 128, 6, 64, LoraOutput::kScatter, LoraNorm::kNone, true}, dtype, backend);
      }
    }
  });
}

TEST_CASE("LoRA corrections of a row do not depend on the other rows on a CPU", "[linear][lora]") {
  ForEachBackend([](TestBackend& backend) {
    if (backend.device() != nullptr) return;
    const LoraCase c = {40, 96, 2, 48};
    const Adapters adapters({c.parts, c.part_columns, c.k}, DType::kF32, backend);
    const std::vector<float> x = Random(c.rows * c.k, 1);
    const std::vector<int32_t> rows = AdapterOfRows(c.rows);
    const auto run = [&](int64_t begin, int64_t end) {
      const std::vector<float> own(x.begin() + begin * c.k, x.begin() + end * c.k);
      const std::vector<int32_t> own_adapters(rows.begin() + begin, rows.begin() + end);
      const int64_t count = end - begin;
      const std::vector<float> zeros(static_cast<size_t>(count * 96));
      const Tensor y = backend.Put(zeros, {count, 96});
      AddLora({.x = backend.Put(own, {count, c.k}),
               .weight = &adapters.weight(),
               .adapters = backend.Plan(own_adapters),
               .y = y,
               .scratch = backend.Scratch(LoraScratchBytes(adapters.weight(), count))},
              backend.stream());
      return backend.Floats(y);
    };
    const std::vector<float> all = run(0, c.rows);
    for (int64_t r = 0; r < c.rows; ++r) {
      const std::vector<float> alone = run(r, r + 1);
      CHECK(std::equal(alone.begin(), alone.end(), all.begin() + r * 96));
    }
  });
}

TEST_CASE("A row bias is added before the activation", "[linear][lora]") {
  ForEachBackend([](TestBackend& backend) {
    for (const WeightType type : Types(backend.device())) {
      for (const bool gated : {false, true}) {
        for (const int64_t rows : Pick<int64_t>({1, 7, 40, 300}, {1, 40})) {
          const int64_t n = 2 * 48, k = 64, columns = gated ? n / 2 : n;
          const DType dtype = ActivationType(type, backend.device());
          const std::vector<float> values = Random(n * k, 1, 0.2f), row_bias = Random(rows * n, 3);
          const auto run = [&](const LinearWeight& w, Activation activation, bool with_bias) {
            LinearArgs args;
            args.x = backend.Put(Random(rows * k, 2), {rows, k}, dtype);
            args.w = &w;
            args.bias = backend.Put(Random(n, 5), {n});
            args.activation = activation;
            if (with_bias) args.row_bias = backend.Put(row_bias, {rows, n});
            args.y = backend.Poisoned(DType::kF32, {rows, w.gated() ? n / 2 : n});
            args.scratch = backend.Scratch(LinearScratchBytes(w, rows, backend.stream()));
            Linear(args, backend.stream());
            return backend.Floats(args.y);
          };
          const LinearWeight weight = MakeWeight(values, n, k, type, gated, backend.device());
          const LinearWeight plain = MakeWeight(values, n, k, type, false, backend.device());
          const std::vector<float> sums = run(plain, Activation::kNone, false);
          const std::vector<float> got = run(weight, Activation::kSilu, true);
          double error = 0.0, most = 0.0;
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < columns; ++c) {
              const auto biased = [&](int64_t column) {
                return double{sums[r * n + column]} + row_bias[r * n + column];
              };
              double expected = Activate(Activation::kSilu, biased(c));
              if (gated) expected *= biased(c + columns);
              most = std::max(most, std::fabs(expected));
              const double own = std::fabs(expected - got[r * columns + c]);
              if (!(own <= error)) error = own;
            }
          }
          INFO("type " << static_cast<int>(type) << " rows " << rows << " gated " << gated);
          CHECK(error <= (dtype == DType::kF32 ? 1e-5 : 4 * RoundingError(dtype)) * most);
        }
      }
    }
  });
}

}  // namespace
}  // namespace quintet
