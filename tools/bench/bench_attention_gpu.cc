// Benchmark of attention on a GPU, relative to ceilings measured in the same run. Prefill is
// reported in TFLOP/s for 4 * batch * heads * n^2 * head_dim operations, half of that if causal;
// with a mask (FlashMask) only visible (query, key) pairs count. Decoder steps are reported in
// GB/s, with each key and value counted as read once.
//
//   bench_attention_gpu [--filter TEXT...] [--json FILE [--commit ID]]
#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/attention.h"
#include "models/weights/position.h"
#include "tools/bench/timing_gpu.h"

namespace quintet {
namespace {

constexpr int64_t kBuckets = 32, kMaxDistance = 128;  // parameters of T5's buckets
constexpr int64_t kFireSegments = 33;                 // 32 hidden units: up to 32 knots
constexpr int64_t kGlobal = 128;                      // tokens that all tokens see and that see all

// Makes a position bias with random values. For T5's bias (kTable), `causal` selects the decoder's
// buckets instead of the encoder's.
PositionBias Bias(GpuBench& bench, BiasKind kind, int64_t heads, bool causal) {
  PositionBias bias;
  bias.kind = kind;
  bias.heads = heads;
  if (kind == BiasKind::kTable) {
    const BucketMap map = MapBuckets(kBuckets, kMaxDistance, causal);
    std::mt19937 random(1);
    std::vector<float> table;
    for (int64_t h = 0; h < heads; ++h) {
      std::vector<float> of_bucket(kBuckets);
      for (float& v : of_bucket) v = std::uniform_real_distribution<float>(-1, 1)(random);
      for (int32_t bucket : map.buckets) table.push_back(of_bucket[static_cast<size_t>(bucket)]);
    }
    bias.saturation = map.saturation;
    bias.table = bench.Values(table, {heads, 2 * map.saturation + 1});
  }
  if (kind == BiasKind::kAlibi) {
    bias.slopes = bench.Values(AlibiSlopes(heads, false), {heads});
  }
  if (kind == BiasKind::kFire) {
    bias.fire_c = 0.1f;
    bias.fire_threshold = 512.0f;
    std::vector<float> knots;
    for (int64_t i = 1; i < kFireSegments; ++i) {
      knots.push_back(2.0f * static_cast<float>(i) / static_cast<float>(kFireSegments) - 1.0f);
    }
    bias.knots = bench.Values(knots, {kFireSegments - 1});
    std::mt19937 random(2);
    std::vector<float> slopes, offsets;
    for (int64_t i = 0; i < heads * kFireSegments; ++i) {
      const int64_t segment = i % kFireSegments;
      slopes.push_back(std::uniform_real_distribution<float>(-1, 1)(random));
      const size_t last = slopes.size() - 1;
      offsets.push_back(segment == 0
                            ? 0.0f
                            : offsets.back() + (slopes[last - 1] - slopes[last]) *
                                                   knots[static_cast<size_t>(segment) - 1]);
    }
    bias.segment_slope = bench.Values(slopes, {heads, kFireSegments});
    bias.segment_offset = bench.Values(offsets, {heads, kFireSegments});
  }
  return bias;
}

const char* Name(BiasKind kind) {
  switch (kind) {
    case BiasKind::kNone:
      return "none";
    case BiasKind::kTable:
      return "table";
    case BiasKind::kAlibi:
      return "alibi";
    case BiasKind::kFire:
      return "fire";
  }
  return "";
}

Tensor Scratch(GpuBench& bench, int64_t rows, int64_t heads, int64_t head_dim) {
  const int64_t bytes = AttentionScratchBytes(rows, heads, head_dim, bench.stream());
  return bench.Empty(DType::kI8, {std::max<int64_t>(1, bytes)});
}

// A prefill of `total` tokens in sequences of n tokens each. Q, K and V are column ranges of one
// matrix, the output of the QKV GEMM.
struct PrefillCase {
  int64_t heads, head_dim, n, total;
  bool causal;
  DType dtype = DType::kBF16;
};

// Returns the arguments of Attention for a PrefillCase. `offsets` contains the index of the first
// token of each sequence and, as its last element, the total number of tokens.
AttentionArgs Prefill(GpuBench& bench, const PrefillCase& c, std::span<const int32_t> offsets,
                      const PositionBias* bias, uint32_t seed) {
  const int64_t width = c.heads * c.head_dim;
  const Tensor qkv = bench.Random(c.dtype, {c.total, 3 * width}, seed);
  AttentionArgs args;
  args.q = qkv;
  args.q.rank = 3;
  args.q.dim[1] = c.heads;
  args.q.dim[2] = c.head_dim;
  args.q.stride[1] = c.head_dim;
  args.q.stride[2] = 1;
  args.k = args.v = args.q;
  args.k.data = qkv.as<char>() + width * DTypeBytes(c.dtype);
  args.v.data = qkv.as<char>() + 2 * width * DTypeBytes(c.dtype);
  args.out = bench.Empty(c.dtype, {c.total, c.heads, c.head_dim});
  args.q_offsets = args.kv_offsets = offsets;
  args.causal = c.causal;
  args.bias = bias;
  args.scale = 0.125f;
  args.scratch = Scratch(bench, c.total, c.heads, c.head_dim);
  return args;
}

std::vector<int32_t> EvenOffsets(int64_t n, int64_t total) {
  std::vector<int32_t> offsets;
  for (int64_t row = 0; row <= total; row += n) offsets.push_back(static_cast<int32_t>(row));
  return offsets;
}

// Measures a PrefillCase with each of the position biases. Their launches alternate, so that all
// run at the same GPU clock.
void BenchPrefill(GpuBench& bench, const PrefillCase& c, std::span<const BiasKind> biases) {
  const int copies = 2;
  const double flops = (c.causal ? 2.0 : 4.0) * static_cast<double>(c.total) *
                       static_cast<double>(c.n) * static_cast<double>(c.heads * c.head_dim);
  std::vector<AttentionArgs> calls;  // [copies]: the same arguments on other inputs
  std::deque<PositionBias> tables;
  std::vector<BenchCase> cases;
  for (BiasKind bias : biases) {
    const std::string name = std::string("prefill ") + DTypeName(c.dtype) + " heads " +
                             std::to_string(c.heads) + " dim " + std::to_string(c.head_dim) +
                             " n " + std::to_string(c.n) + (c.causal ? " causal " : " full ") +
                             Name(bias);
    if (!bench.Wanted(name)) continue;
    if (calls.empty()) {
      const std::span<const int32_t> offsets = bench.Plan(EvenOffsets(c.n, c.total));
      for (uint32_t i = 1; i <= copies; ++i) {
        calls.push_back(Prefill(bench, c, offsets, nullptr, i));
      }
    }
    tables.push_back(Bias(bench, bias, c.heads, c.causal));
    cases.push_back(
        {name, {.flops = flops}, copies, [&calls, &bench, &table = tables.back()](int i) {
           AttentionArgs args = calls[static_cast<size_t>(i)];
           args.bias = &table;
           Attention(args, bench.stream());
         }});
  }
  if (!cases.empty()) bench.RunByTurns(cases);
  bench.Clear();
}

// Measures attention over 64 sequences of 16 to 512 tokens, either packed or each padded to 512.
void BenchPacked(GpuBench& bench, bool padded) {
  const std::string name =
      std::string("64 sequences of 16 to 512 tokens ") + (padded ? "padded" : "packed");
  if (!bench.Wanted(name)) return;
  std::mt19937 random(3);
  std::vector<int32_t> offsets = {0};
  for (int s = 0; s < 64; ++s) {
    const int32_t n = padded ? 512 : 16 + static_cast<int32_t>(random() % 497);
    offsets.push_back(offsets.back() + n);
  }
  const PositionBias bias = Bias(bench, BiasKind::kTable, 12, false);
  const AttentionArgs args =
      Prefill(bench, {12, 64, 0, offsets.back(), false}, bench.Plan(offsets), &bias, 1);
  double pairs = 0;
  for (size_t s = 0; s < 64; ++s) pairs += std::pow(offsets[s + 1] - offsets[s], 2.0);
  bench.Run(name, {.flops = 4 * pairs * 12 * 64}, 1, [&](int) { Attention(args, bench.stream()); });
  bench.Clear();
}

// The part of a mask that belongs to key j: the key is hidden from the queries in [lower_begin,
// lower_end) and in [upper_begin, upper_end).
struct MaskColumn {
  int64_t lower_begin, lower_end, upper_begin, upper_end;
};

struct MaskFamily {
  std::string name;
  bool causal;
  std::function<MaskColumn(int64_t j, int64_t n)> column;
};

// Returns the families of masks that this benchmark measures (causal, window, documents, ...).
// `part` is their common parameter: the length in tokens of a window, document, answer or block.
std::vector<MaskFamily> MaskFamilies(int64_t part) {
  const auto begin = [part](int64_t j) { return j / part * part; };
  const auto end = [begin, part](int64_t j, int64_t n) { return std::min(begin(j) + part, n); };
  return {
      {"full", false,
       [](int64_t, int64_t n) {
         return MaskColumn{n, n, 0, 0};
       }},
      {"causal", true,
       [](int64_t, int64_t n) {
         return MaskColumn{n, n, 0, 0};
       }},
      {"causal window", true,
       [part](int64_t j, int64_t n) {
         return MaskColumn{std::min(j + part, n), n, 0, 0};
       }},
      {"window", false,
       [part](int64_t j, int64_t n) {
         return MaskColumn{std::min(j + part + 1, n), n, 0, std::max<int64_t>(j - part, 0)};
       }},
      {"causal documents", true,
       [end](int64_t j, int64_t n) {
         return MaskColumn{end(j, n), n, 0, 0};
       }},
      {"documents", false,
       [begin, end](int64_t j, int64_t n) {
         return MaskColumn{end(j, n), n, 0, begin(j)};
       }},
      {"shared question", true,
       [part, end](int64_t j, int64_t n) {
         return MaskColumn{j < part ? n : end(j, n), n, 0, 0};
       }},
      {"global and window", false,
       [part](int64_t j, int64_t n) {
         if (j < kGlobal) return MaskColumn{n, n, 0, 0};
         return MaskColumn{std::min(j + part + 1, n), n, kGlobal, std::max(kGlobal, j - part)};
       }},
      {"causal blocks", true,
       [begin, end](int64_t j, int64_t n) {
         const int64_t last = begin(n - 1);
         return j >= last ? MaskColumn{n, n, 0, 0} : MaskColumn{end(j, n), last, 0, 0};
       }},
      {"prefix documents", false,
       [part, begin, end](int64_t j, int64_t n) {
         return MaskColumn{end(j, n), n, 0, j - begin(j) < part / 4 ? begin(j) : j};
       }},
      {"prefix", false,
       [](int64_t j, int64_t n) {
         return MaskColumn{n, n, 0, j < n / 4 ? 0 : j};
       }},
      {"dropped keys", true,
       [](int64_t j, int64_t n) {
         return j >= n / 4 && j < n / 2 ? MaskColumn{j, n / 2, 0, 0} : MaskColumn{n, n, 0, 0};
       }},
      {"eviction", true,
       [](int64_t j, int64_t n) {
         return MaskColumn{j + 1 + j * 7919 % (n - j), n, 0, 0};
       }},
  };
}

// Returns the fraction of all n * n (query, key) pairs that remain visible under the mask. If the
// mask is causal, keys after their query are hidden, too.
double Seen(const MaskFamily& family, int64_t n) {
  double seen = 0;
  for (int64_t j = 0; j < n; ++j) {
    const MaskColumn c = family.column(j, n);
    const int64_t from = family.causal ? j : 0;
    const auto hidden = [&](int64_t begin, int64_t end) {
      return std::max<int64_t>(0, std::min(end, n) - std::max(begin, from));
    };
    seen += static_cast<double>(n - from - hidden(c.lower_begin, c.lower_end) -
                                hidden(c.upper_begin, c.upper_end));
  }
  return seen / static_cast<double>(n) / static_cast<double>(n);
}

void BenchMask(GpuBench& bench, const MaskFamily& family, int64_t n, int64_t part) {
  const std::string name =
      "mask " + family.name + " n " + std::to_string(n) + " part " + std::to_string(part);
  if (!bench.Wanted(name)) return;
  const int64_t total = std::max<int64_t>(n, 16384), heads = 16, head_dim = 128;
  const std::vector<int32_t> offsets = EvenOffsets(n, total);
  std::vector<int32_t> columns[4];
  for (int64_t row = 0; row < total; ++row) {
    const MaskColumn c = family.column(row % n, n);
    const int64_t values[4] = {c.lower_begin, c.lower_end, c.upper_begin, c.upper_end};
    for (int i = 0; i < 4; ++i) columns[i].push_back(static_cast<int32_t>(values[i]));
  }
  // A column mask is four vectors with one value per key. As real callers do, leave out each vector
  // whose values all mean that nothing is hidden.
  const int64_t nothing[4] = {-1, n, 0, 0};
  std::span<const int32_t> spans[4];
  for (int i = 0; i < 4; ++i) {
    const bool says = std::any_of(columns[i].begin(), columns[i].end(),
                                  [&](int32_t value) { return value != nothing[i]; });
    if (says) spans[i] = bench.Plan(columns[i]);
  }
  ColumnMask mask{spans[0], spans[1], spans[2], spans[3], {}};
  std::vector<MaskTile> tiles(static_cast<size_t>(MaskTiles(offsets)));
  SummariseMask(mask.columns(), offsets, std::span(tiles));
  mask.tiles = bench.Plan(tiles);
  AttentionArgs args =
      Prefill(bench, {heads, head_dim, n, total, family.causal}, bench.Plan(offsets), nullptr, 1);
  args.mask = &mask;
  const double pairs = static_cast<double>(total) * static_cast<double>(n) * Seen(family, n);
  bench.Run(name, {.flops = 4 * pairs * heads * head_dim}, 1,
            [&](int) { Attention(args, bench.stream()); });
  bench.Clear();
}

// Measures every mask family with n = 8192 and 32768 tokens and `part` = n / 8, then three families
// with n = 16384 tokens and `part` = 256, 512, ..., 16384 (see MaskFamilies).
void BenchMasks(GpuBench& bench) {
  for (int64_t n : {8192, 32768}) {
    for (const MaskFamily& family : MaskFamilies(n / 8)) BenchMask(bench, family, n, n / 8);
  }
  const int64_t n = 16384;
  for (int64_t part = 256; part <= n; part *= 2) {
    const std::vector<MaskFamily> families = MaskFamilies(part);
    for (size_t family : {2, 4, 6}) BenchMask(bench, families[family], n, part);
  }
}

// A benchmark case: the attention of one decoder step for `sequences` requests with `rows` beams
// each. Every request has `kv` cached keys.
struct StepCase {
  const char* what;
  int64_t sequences, rows, heads, head_dim, kv;
  BiasKind bias = BiasKind::kNone;
};

void BenchStep(GpuBench& bench, const StepCase& c, DType cache_type) {
  const std::string name =
      std::string(cache_type == DType::kF8 ? "step bf16, fp8 cache " : "step bf16 ") + c.what +
      " requests " + std::to_string(c.sequences) + " rows " + std::to_string(c.rows) + " heads " +
      std::to_string(c.heads) + " dim " + std::to_string(c.head_dim) + " kv " +
      std::to_string(c.kv) + " " + Name(c.bias);
  if (!bench.Wanted(name)) return;
  constexpr int64_t kPage = 16;
  const int64_t request_pages = (c.kv + kPage - 1) / kPage;
  const PositionBias bias = Bias(bench, c.bias, c.heads, true);
  std::vector<int32_t> pages(static_cast<size_t>(c.sequences * request_pages)), slots;
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(1));
  for (int32_t page : pages) {
    for (int32_t i = 0; i < kPage; ++i) slots.push_back(page * static_cast<int32_t>(kPage) + i);
  }
  KvCache shape{.dtype = cache_type,
                .pages = static_cast<int64_t>(pages.size()),
                .layers = 1,
                .heads = c.heads,
                .page_size = kPage,
                .head_dim = c.head_dim};
  const int64_t values = shape.pages * shape.page_elements();
  const int64_t bytes = values * DTypeBytes(cache_type);
  const int copies = bench.CopiesPastL2(bytes);
  std::vector<KvCache> caches(static_cast<size_t>(copies), shape);
  std::vector<AttentionArgs> calls;
  std::vector<int32_t> offsets;
  for (int64_t s = 0; s <= c.sequences; ++s) offsets.push_back(static_cast<int32_t>(s * c.rows));
  for (int i = 0; i < copies; ++i) {
    KvCache& cache = caches[static_cast<size_t>(i)];
    cache.data = bench.Random(cache_type, {values}, i + 1).data;
    AttentionArgs args;
    args.q = bench.Random(DType::kBF16, {c.sequences * c.rows, c.heads, c.head_dim}, i + 100);
    args.out = bench.Empty(DType::kBF16, {c.sequences * c.rows, c.heads, c.head_dim});
    args.q_offsets = bench.Plan(offsets);
    args.cache = &cache;
    args.slots = bench.Plan(slots).data();
    args.slots_stride = request_pages * kPage;
    args.kv_lens = bench.Plan(
        std::vector<int32_t>(static_cast<size_t>(c.sequences), static_cast<int32_t>(c.kv)));
    args.bias = &bias;
    args.scratch = Scratch(bench, c.sequences * c.rows, c.heads, c.head_dim);
    calls.push_back(args);
  }
  const int64_t read = c.sequences * c.heads * c.head_dim *
                       (2 * c.kv * DTypeBytes(cache_type) + 2 * c.rows * DTypeBytes(DType::kBF16));
  bench.Run(name, {.bytes = static_cast<double>(read)}, copies,
            [&](int i) { Attention(calls[static_cast<size_t>(i)], bench.stream()); });
  bench.Clear();
}

void BenchAll(GpuBench& bench) {
  const BiasKind kEvery[] = {BiasKind::kNone, BiasKind::kTable, BiasKind::kAlibi, BiasKind::kFire};
  const auto none_and_table = std::span(kEvery).first(2);
  for (int64_t dim : {64, 128}) {
    for (int64_t n : {512, 2048, 8192, 16384}) {
      for (bool causal : {false, true}) {
        const bool every = n == 2048 || n == 8192;
        BenchPrefill(bench, {16, dim, n, 16384, causal},
                     every ? std::span(kEvery) : none_and_table);
      }
    }
  }
  BenchPrefill(bench, {12, 64, 4096, 16384, false}, none_and_table);
  BenchPacked(bench, false);
  BenchPacked(bench, true);
  BenchMasks(bench);
  const auto both = [&](const StepCase& c) {
    for (DType cache_type : {DType::kBF16, DType::kF8}) BenchStep(bench, c, cache_type);
  };
  for (const StepCase& c :
       {StepCase{"t5-base b1 cross", 1, 1, 12, 64, 128},
        StepCase{"t5-base b1 self", 1, 1, 12, 64, 64, BiasKind::kTable},
        StepCase{"t5-base b8 cross", 8, 1, 12, 64, 128},
        StepCase{"t5-base b32 cross", 32, 1, 12, 64, 128},
        StepCase{"t5-base b32 beam4 cross", 32, 4, 12, 64, 128},
        StepCase{"t5-base b128 cross", 128, 1, 12, 64, 128},
        StepCase{"t5-base b128 self", 128, 1, 12, 64, 64, BiasKind::kTable},
        StepCase{"xl b32 cross", 32, 1, 32, 64, 128},
        StepCase{"xl b128 cross", 128, 1, 32, 64, 128},
        StepCase{"xl b128 cross", 128, 1, 32, 64, 512},
        StepCase{"xl b32 beam4", 32, 4, 32, 64, 512},
        StepCase{"t5-base b32 cross", 32, 1, 12, 64, 1024},
        StepCase{"t5-base b128 cross", 128, 1, 12, 64, 4096},
        StepCase{"xl b32 cross", 32, 1, 32, 64, 4096},
        StepCase{"gpt2 b128 self", 128, 1, 12, 64, 1000}, StepCase{"b1", 1, 1, 32, 64, 8192},
        StepCase{"b8", 8, 1, 32, 64, 8192}, StepCase{"b64", 64, 1, 16, 128, 2048},
        StepCase{"b64 beam4", 64, 4, 16, 128, 2048}}) {
    both(c);
  }
  // Long contexts, few requests.
  for (int64_t kv : {1024, 4096, 16384, 65536}) {
    both({"t5-base b1 cross", 1, 1, 12, 64, kv});
    both({"xl b1 cross", 1, 1, 32, 64, kv});
    if (kv <= 16384) both({"t5-base b4 cross", 4, 1, 12, 64, kv});
  }
  for (int64_t beams : {4, 16}) both({"t5-base b1 beams cross", 1, beams, 12, 64, 16384});
  both({"t5-base b1 self", 1, 1, 12, 64, 4096, BiasKind::kTable});
  both({"xl b4 beam4 cross", 4, 4, 32, 64, 16384});
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) {
  return quintet::RunGpuBench(argc, argv, "Attention on a GPU", quintet::BenchAll);
}
