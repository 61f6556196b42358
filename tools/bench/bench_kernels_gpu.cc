// Benchmark of ops on a GPU by shape: time, rate, and fraction of a ceiling measured in the same
// run (timing_gpu.h).
//
//   bench_kernels_gpu [--filter TEXT...] [--json FILE [--commit ID]]
#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/linear/lora.h"
#include "kernels/linear/weight.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/norm.h"
#include "kernels/sampling/log_prob.h"
#include "kernels/sampling/selection.h"
#include "tools/bench/timing_gpu.h"

namespace quintet {
namespace {

// ---- Cases ----

void BenchRmsNorm(GpuBench& bench, DType x_type, int64_t rows, int64_t d) {
  const std::string name =
      std::string("rms_norm ") + DTypeName(x_type) + " to bf16 " + By({rows, d});
  if (!bench.Wanted(name)) return;
  const int64_t bytes = rows * d * (DTypeBytes(x_type) + 2);
  const int copies = bench.CopiesPastL2(bytes);
  std::vector<RmsNormArgs> calls;
  const Tensor gamma = bench.Random(DType::kF32, {d});
  for (int i = 0; i < copies; ++i) {
    calls.push_back({.x = bench.Random(x_type, {rows, d}, i + 1),
                     .gamma = gamma,
                     .y = bench.Empty(DType::kBF16, {rows, d})});
  }
  bench.Run(name, {.bytes = static_cast<double>(bytes + 4 * d)}, copies,
            [&](int i) { RmsNorm(calls[i], bench.stream()); });
  bench.Clear();
}

// Measures an embedding lookup: GPT-2's, which also adds position embeddings, if `with_positions`
// is true, otherwise T5's. Successive calls read different rows of the table.
void BenchEmbedding(GpuBench& bench, DType y_type, int64_t rows, int64_t d, bool with_positions) {
  const std::string name = std::string("embedding bf16 to ") + DTypeName(y_type) + " " +
                           By({rows, d}) + (with_positions ? " with positions" : "");
  if (!bench.Wanted(name)) return;
  const int64_t vocab = with_positions ? 50257 : 32128, most_positions = 1024;
  const int64_t bytes = rows * d * (2 + DTypeBytes(y_type)) + 4 * rows;
  const int copies = bench.CopiesPastL2(bytes);
  EmbeddingArgs args;
  args.table = bench.Random(DType::kBF16, {vocab, d});
  if (with_positions) {
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    for (size_t r = 0; r < positions.size(); ++r) {
      positions[r] = static_cast<int32_t>(static_cast<int64_t>(r) % most_positions);
    }
    args.positions = Tensor::Dense(bench.Plan(positions).data(), DType::kI32, {rows});
    args.position_table = bench.Random(DType::kBF16, {most_positions, d}, 2);
  }
  std::vector<EmbeddingArgs> calls;
  for (int64_t i = 0; i < copies; ++i) {
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      ids[static_cast<size_t>(r)] = static_cast<int32_t>((i * rows + r) * 7919 % vocab);
    }
    args.ids = Tensor::Dense(bench.Plan(ids).data(), DType::kI32, {rows});
    args.y = bench.Empty(y_type, {rows, d});
    calls.push_back(args);
  }
  const int64_t positions_bytes = with_positions ? std::min(rows, most_positions) * d * 2 : 0;
  bench.Run(name, {.bytes = static_cast<double>(bytes + positions_bytes)}, copies,
            [&](int i) { Embedding(calls[i], bench.stream()); });
  bench.Clear();
}

LinearWeight Weight(GpuBench& bench, int64_t n, int64_t k, WeightType type = WeightType::kBF16,
                    bool gated = false) {
  absl::StatusOr<LinearWeight> made = LinearWeight::Allocate(n, k, type, gated, &bench.device());
  CheckOk(made.status());
  LinearWeight w = *std::move(made);
  std::vector<float> values(static_cast<size_t>(std::min<int64_t>(n, 64) * k));
  std::mt19937 generator(static_cast<uint32_t>(n + k));
  for (float& v : values) v = static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f;
  for (int64_t row = 0; row < n; row += 64) {
    const int64_t rows = std::min<int64_t>(64, n - row);
    w.Pack(row, Tensor::F32(values.data(), {rows, k}));
  }
  return w;
}

void BenchLinear(GpuBench& bench, int64_t rows, int64_t k, int64_t n, DType y_type,
                 WeightType type = WeightType::kBF16) {
  const std::string name = std::string("linear ") + WeightTypeName(type) + " to " +
                           DTypeName(y_type) + " " + By({rows, k, n});
  if (!bench.Wanted(name)) return;
  const int64_t bytes =
      DTypeBytes(WeightDType(type)) * n * k + 2 * rows * k + rows * n * DTypeBytes(y_type);
  const int copies = bench.CopiesPastL2(bytes);
  std::vector<LinearWeight> weights;
  std::vector<LinearArgs> calls;
  for (int i = 0; i < copies; ++i) weights.push_back(Weight(bench, n, k, type));
  for (int i = 0; i < copies; ++i) {
    calls.push_back({.x = bench.Random(DType::kBF16, {rows, k}, i + 1),
                     .w = &weights[i],
                     .y = bench.Empty(y_type, {rows, n})});
    const int64_t scratch = LinearScratchBytes(weights[i], rows, bench.stream());
    if (scratch > 0) calls.back().scratch = bench.Empty(DType::kI8, {scratch});
  }
  bench.Run(name, {.bytes = static_cast<double>(bytes), .flops = 2.0 * rows * k * n}, copies,
            [&](int i) { Linear(calls[i], bench.stream()); });
  bench.Clear();
}

// Measures a GEMM with a gated activation. The product x W^T has a gate half and an up half of its
// columns; y = GELU(gate) * up, element by element.
void BenchGatedLinear(GpuBench& bench, int64_t rows, int64_t k, int64_t n,
                      WeightType type = WeightType::kBF16) {
  const std::string name =
      std::string("gated linear ") + WeightTypeName(type) + " " + By({rows, k, n});
  if (!bench.Wanted(name)) return;
  const int64_t bytes = DTypeBytes(WeightDType(type)) * n * k + 2 * (rows * k + rows * n / 2);
  const int copies = bench.CopiesPastL2(bytes);
  std::vector<LinearWeight> weights;
  std::vector<LinearArgs> calls;
  for (int i = 0; i < copies; ++i) weights.push_back(Weight(bench, n, k, type, true));
  for (int i = 0; i < copies; ++i) {
    const int64_t scratch = LinearScratchBytes(weights[i], rows, bench.stream());
    calls.push_back({.x = bench.Random(DType::kBF16, {rows, k}, i + 1),
                     .w = &weights[i],
                     .activation = Activation::kGeluTanh,
                     .y = bench.Empty(DType::kBF16, {rows, n / 2}),
                     .scratch = bench.Empty(DType::kI8, {scratch})});
  }
  bench.Run(name, {.bytes = static_cast<double>(bytes), .flops = 2.0 * rows * k * n}, copies,
            [&](int i) { Linear(calls[i], bench.stream()); });
  bench.Clear();
}

// Measures a GEMM that also adds LoRA terms. `adapters`: the number of adapters of rank 16, which
// the rows use in turn; 0 measures the GEMM without LoRA terms. Each copy of the weight has its own
// adapters.
void BenchLora(GpuBench& bench, int64_t rows, int64_t k, int64_t n, int64_t adapters) {
  constexpr int64_t kRank = 16;
  const std::string name =
      "linear with " + std::to_string(adapters) + " adapters " + By({rows, k, n});
  if (!bench.Wanted(name)) return;
  const int64_t bytes = 2 * (n * k + rows * k + rows * n + adapters * kRank * (n + k));
  const int copies = bench.CopiesPastL2(bytes);
  std::vector<int32_t> adapter_of_row;
  for (int64_t r = 0; r < rows; ++r) {
    adapter_of_row.push_back(static_cast<int32_t>(r % std::max<int64_t>(adapters, 1)));
  }
  const std::span<const int32_t> planned = bench.Plan(adapter_of_row);
  std::vector<LinearWeight> weights;
  std::vector<LoraWeight> loras;
  std::vector<LinearArgs> calls;
  for (int i = 0; i < copies; ++i) {
    weights.push_back(Weight(bench, n, k));
    LoraWeight lora = {.stride = 1, .parts = 1, .part_columns = n, .k = k, .max_rank = kRank};
    lora.dtype = DType::kBF16;
    std::vector<LoraPart> table;
    for (int64_t t = 0; t < adapters; ++t) {
      table.push_back({bench.Random(DType::kBF16, {kRank, k}).data,
                       bench.Random(DType::kBF16, {n, kRank}).data, kRank});
    }
    lora.table = bench.Bytes(table).as<LoraPart>();
    lora.counter = bench.Bytes(std::vector<uint64_t>{1 << 16}).as<uint64_t>();
    loras.push_back(lora);
  }
  for (int i = 0; i < copies; ++i) {
    calls.push_back({.x = bench.Random(DType::kBF16, {rows, k}, i + 1),
                     .w = &weights[i],
                     .y = bench.Empty(DType::kBF16, {rows, n})});
    const int64_t scratch = LinearScratchBytes(weights[i], rows, bench.stream());
    if (scratch > 0) calls.back().scratch = bench.Empty(DType::kI8, {scratch});
    if (adapters == 0) continue;
    const std::vector<char> words(static_cast<size_t>(LoraWordBytes(loras[i], bench.stream())));
    calls.back().lora = {.weight = &loras[i],
                         .adapters = planned,
                         .one_adapter = adapters == 1,
                         .words = bench.Bytes(words)};
  }
  bench.Run(name, {.bytes = static_cast<double>(bytes), .flops = 2.0 * rows * k * n}, copies,
            [&](int i) { Linear(calls[i], bench.stream()); });
  bench.Clear();
}

struct CrossCase {
  const char* model;
  int64_t layers, heads, d_model, inputs, input_tokens;
};

// Measures the GEMM that projects the encoder's hidden states to the cross-attention keys and
// values of all decoder layers and scatters these to cache pages. `batched`: one GEMM for all
// layers, as in the models; otherwise one GEMM per layer.
void BenchCrossKv(GpuBench& bench, const CrossCase& c, bool batched) {
  const std::string name = std::string("cross k,v ") + c.model + " " +
                           By({c.inputs, c.input_tokens}) +
                           (batched ? " one product" : " a product a layer");
  if (!bench.Wanted(name)) return;
  const int64_t tokens = c.inputs * c.input_tokens, head_dim = 64;
  const int64_t products = batched ? 1 : c.layers, n = c.layers * 2 * c.heads * head_dim;
  KvCache cache{.dtype = DType::kBF16,
                .pages = tokens / 16,
                .layers = c.layers,
                .heads = c.heads,
                .page_size = 16,
                .head_dim = head_dim};
  cache.data = bench.Empty(DType::kBF16, {cache.pages, cache.page_elements()}).data;
  std::vector<int64_t> rows, chunks;
  for (int64_t slot = 0; slot < tokens; ++slot) rows.push_back(cache.SlotOffset(slot));
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    for (const bool value : {false, true}) {
      for (int64_t h = 0; h < c.heads; ++h) chunks.push_back(cache.ChunkOffset(layer, value, h));
    }
  }
  const int64_t* row_offset = bench.Plan(rows).data();
  const int64_t* chunk_offset = bench.Plan(chunks).data();
  const Tensor states = bench.Random(DType::kF32, {tokens, c.d_model});
  std::vector<LinearWeight> weights;
  for (int64_t i = 0; i < products; ++i) {
    weights.push_back(Weight(bench, n / products, c.d_model));
  }
  const Tensor scratch =
      bench.Empty(DType::kI8, {LinearScratchBytes(weights[0], tokens, bench.stream())});
  const Work work{.bytes = 2.0 * n * c.d_model + 4.0 * tokens * c.d_model + 2.0 * tokens * n,
                  .flops = 2.0 * tokens * n * c.d_model};
  bench.Run(name, work, 1, [&](int) {
    for (int64_t i = 0; i < products; ++i) {
      Linear({.x = states,
              .w = &weights[static_cast<size_t>(i)],
              .scatter = {.base = cache.data,
                          .dtype = cache.dtype,
                          .row_offset = row_offset,
                          .chunk_offset = chunk_offset + i * 2 * c.heads,
                          .chunk = head_dim},
              .scratch = scratch},
             bench.stream());
    }
  });
  bench.Clear();
}

// A benchmark case of top-k. Every `group` rows (the beams of one request) share one selection of k
// candidates. `hot`: the logits are in the L2 cache, as they are after the LM head's GEMM.
struct TopKCase {
  int64_t rows, vocab, group;
  int32_t k;
  bool log_softmax, hot;
};

void BenchTopK(GpuBench& bench, const TopKCase& c) {
  const std::string name = std::string(c.log_softmax ? "log_softmax+topk " : "topk ") +
                           By({c.rows, c.vocab}) + " " + std::to_string(c.k) + " of " +
                           std::to_string(c.group) + " rows" + (c.hot ? " hot" : "");
  if (!bench.Wanted(name)) return;
  const int64_t n = c.rows / c.group;
  std::vector<int32_t> offsets;
  for (int64_t r = 0; r <= c.rows; r += c.group) offsets.push_back(static_cast<int32_t>(r));
  TopKArgs args;
  args.row_offsets = bench.Plan(offsets);
  args.k = bench.Plan(std::vector<int32_t>(static_cast<size_t>(n), c.k));
  args.row_bias = bench.Random(DType::kF32, {c.rows});
  if (c.log_softmax) {
    args.log_softmax = bench.Plan(std::vector<int32_t>(static_cast<size_t>(n), 1));
    args.log_sums = bench.Empty(DType::kF32, {c.rows});
  }
  args.values = bench.Empty(DType::kF32, {n, c.k});
  args.indices = bench.Empty(DType::kI32, {n, c.k});
  args.scratch = bench.Empty(DType::kI8, {TopKScratchBytes(c.rows, c.vocab, c.k, bench.stream())});
  const int64_t bytes = c.rows * c.vocab * 4;
  const int copies = c.hot ? 1 : bench.CopiesPastL2(bytes);
  std::vector<Tensor> scores;
  for (int i = 0; i < copies; ++i)
    scores.push_back(bench.Random(DType::kF32, {c.rows, c.vocab}, i));
  bench.Run(name, {.bytes = static_cast<double>(bytes)}, copies, [&](int i) {
    args.scores = scores[i];
    TopK(args, bench.stream());
  });
  bench.Clear();
}

void BenchLogSumExp(GpuBench& bench, int64_t rows, int64_t vocab) {
  const std::string name = "log_sum_exp " + By({rows, vocab});
  if (!bench.Wanted(name)) return;
  const int copies = bench.CopiesPastL2(rows * vocab * 4);
  std::vector<LogSumExpArgs> calls;
  for (int i = 0; i < copies; ++i) {
    calls.push_back({.logits = bench.Random(DType::kF32, {rows, vocab}, i),
                     .out = bench.Empty(DType::kF32, {rows})});
  }
  bench.Run(name, {.bytes = 4.0 * rows * vocab}, copies,
            [&](int i) { LogSumExp(calls[i], bench.stream()); });
  bench.Clear();
}

void BenchLogProb(GpuBench& bench, int64_t rows, int64_t k, int64_t vocab, int64_t top) {
  const std::string name = "log_prob bf16 " + By({rows, k, vocab}) + " top " + std::to_string(top);
  if (!bench.Wanted(name)) return;
  const LinearWeight head = Weight(bench, vocab, k);
  TargetLogProbArgs args;
  args.hidden = bench.Random(DType::kBF16, {rows, k});
  args.head = &head;
  const std::vector<int32_t> targets(static_cast<size_t>(rows), 5);
  args.targets = Tensor::Dense(bench.Plan(targets).data(), DType::kI32, {rows});
  args.log_probs = bench.Empty(DType::kF32, {rows});
  if (top > 0) {
    args.top_log_probs = bench.Empty(DType::kF32, {rows, top});
    args.top_tokens = bench.Empty(DType::kI32, {rows, top});
  }
  args.scratch =
      bench.Empty(DType::kI8, {TargetLogProbScratchBytes(head, rows, top, bench.stream())});
  bench.Run(name, {.bytes = 2.0 * vocab * k, .flops = 2.0 * rows * k * vocab}, 1,
            [&](int) { TargetLogProb(args, bench.stream()); });
  bench.Clear();
}

void BenchLoraShapes(GpuBench& bench) {
  for (const auto& [k, n] : std::initializer_list<std::pair<int64_t, int64_t>>{{768, 768},
                                                                               {768, 2304},
                                                                               {768, 3072},
                                                                               {3072, 768},
                                                                               {2048, 2048},
                                                                               {2048, 6144},
                                                                               {5120, 2048}}) {
    for (int64_t rows : {8, 32, 128}) {
      for (int64_t adapters : {int64_t{0}, int64_t{1}, rows}) {
        BenchLora(bench, rows, k, n, adapters);
      }
    }
  }
}

struct Shape {
  int64_t k, n;
};

// Measures the GEMMs of encoder layers of T5-base, Flan-T5-XL and T5-XXL.
void BenchEncoderLinear(GpuBench& bench) {
  for (WeightType type : {WeightType::kBF16, WeightType::kI8W8A8, WeightType::kF8W8A8}) {
    for (const int64_t rows : {128, 512, 4096, 16384}) {
      for (const Shape& s : {Shape{768, 2304}, Shape{2048, 6144}, Shape{4096, 12288}}) {
        BenchLinear(bench, rows, s.k, s.n, DType::kBF16, type);
      }
      for (const Shape& s : {Shape{768, 768}, Shape{2048, 2048}, Shape{5120, 2048},
                             Shape{4096, 4096}, Shape{10240, 4096}}) {
        BenchLinear(bench, rows, s.k, s.n, DType::kF32, type);
      }
      for (const Shape& s : {Shape{768, 4096}, Shape{2048, 10240}, Shape{4096, 20480}}) {
        BenchGatedLinear(bench, rows, s.k, s.n, type);
      }
    }
  }
}

// Measures the GEMMs of decoder steps of T5-base and Flan-T5-XL with weights of 16 and 8 bits.
void BenchStepLinear(GpuBench& bench) {
  for (WeightType type : {WeightType::kBF16, WeightType::kI8, WeightType::kF8}) {
    for (int64_t rows : {1, 4, 8, 16, 32, 64, 96, 128, 4096}) {
      for (const Shape& s : {Shape{768, 2304}, Shape{768, 32128}, Shape{2048, 6144}}) {
        BenchLinear(bench, rows, s.k, s.n, DType::kBF16, type);
      }
      for (const Shape& s : {Shape{768, 768}, Shape{2048, 2048}, Shape{5120, 2048}}) {
        BenchLinear(bench, rows, s.k, s.n, DType::kF32, type);
      }
      BenchGatedLinear(bench, rows, 2048, 10240, type);
    }
  }
}

void BenchAll(GpuBench& bench) {
  for (int64_t rows : {32, 128, 512, 4096, 16384}) {
    for (int64_t d : {768, 2048}) {
      BenchRmsNorm(bench, DType::kF32, rows, d);
      BenchRmsNorm(bench, DType::kBF16, rows, d);
    }
  }
  for (int64_t rows : {1, 32, 128, 4096, 16384, 65536}) {
    BenchEmbedding(bench, DType::kF32, rows, 768, false);
    BenchEmbedding(bench, DType::kF32, rows, 768, true);
    BenchEmbedding(bench, DType::kF32, rows, 2048, false);
    BenchEmbedding(bench, DType::kBF16, rows, 768, false);
  }
  for (const Shape& s : {Shape{512, 512}, Shape{768, 2304}, Shape{768, 3072}, Shape{3072, 768},
                         Shape{2048, 6144}, Shape{5120, 2048}, Shape{2048, 10240}}) {
    for (int64_t rows : {1, 4, 8, 32, 128, 512, 4096, 16384}) {
      BenchLinear(bench, rows, s.k, s.n, DType::kBF16);
    }
  }
  for (int64_t rows : {128, 512, 1024, 2048, 4096, 16384}) {
    BenchGatedLinear(bench, rows, 768, 4096);
    BenchGatedLinear(bench, rows, 2048, 10240);
  }
  BenchLoraShapes(bench);
  for (int64_t rows : {1, 32, 128}) BenchLinear(bench, rows, 768, 32128, DType::kF32);
  BenchStepLinear(bench);
  BenchEncoderLinear(bench);
  for (const CrossCase& c :
       {CrossCase{"t5-base", 12, 12, 768, 32, 128}, CrossCase{"t5-base", 12, 12, 768, 32, 512},
        CrossCase{"flan-t5-xl", 24, 32, 2048, 32, 128},
        CrossCase{"flan-t5-xl", 24, 32, 2048, 32, 512}}) {
    BenchCrossKv(bench, c, true);
    BenchCrossKv(bench, c, false);
  }
  for (bool hot : {false, true}) {
    BenchTopK(bench, {128, 32128, 1, 1, false, hot});
    BenchTopK(bench, {128, 32128, 1, 8, true, hot});
    BenchTopK(bench, {128, 32128, 4, 8, true, hot});
    BenchTopK(bench, {4, 32128, 4, 8, true, hot});
    BenchTopK(bench, {1, 32128, 1, 1, false, hot});
    BenchTopK(bench, {128, 50257, 4, 8, true, hot});
    BenchTopK(bench, {32, 250112, 4, 8, true, hot});
  }
  BenchLogSumExp(bench, 128, 32128);
  for (int64_t top : {0, 5}) {
    BenchLogProb(bench, 512, 768, 32128, top);
    BenchLogProb(bench, 4096, 768, 32128, top);
  }
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) {
  return quintet::RunGpuBench(argc, argv, "Ops x shapes on a GPU", quintet::BenchAll);
}
