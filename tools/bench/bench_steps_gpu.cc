// Measures the time of one decoder step on a GPU, as a captured CUDA graph, and the cost of each
// kind of op in it.
//
//   bench_steps_gpu [--models t5-base,gpt2] [--shapes 1,32,128,8x4] [--source 128] [--keys 64]
//                   [--parts] [--measure] [--whole-norms] [--json FILE]
//
// --source and --keys are the lengths of the encoder input and of the cached prefix, in tokens;
// --measure autotunes the GEMMs first; --whole-norms runs each RMSNorm as an op of its own, not
// split between two GEMMs. A shape in --shapes is a number of requests, or requests x beams. Models
// have real shapes and random bf16 weights. The whole step is captured as a graph. With --parts,
// further graphs are measured, each of which leaves out one kind of op. The cost of an op is the
// time that its graph saves, divided by the number of ops of that kind. Ops overlap, so the costs
// do not add up to the step. Times are medians of graph launches.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/attention/attention.h"
#include "kernels/linear/gemm_tuning.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/kv_cache.h"
#include "kernels/ops/norm.h"
#include "kernels/runtime/device.h"
#include "kernels/runtime/stream.h"
#include "kernels/runtime/thread_pool.h"
#include "kernels/sampling/selection.h"

namespace quintet {
namespace {

using Json = nlohmann::ordered_json;

void CheckOk(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Take(absl::StatusOr<T> value) {
  CheckOk(value.status());
  return *std::move(value);
}

struct ModelShape {
  std::string name;
  int64_t d_model, inner, d_ff, heads, layers, vocab;
  bool gated, cross;  // cross: cross-attention (T5), else GPT-2
  Activation activation;
};

const ModelShape kModels[] = {
    {"t5-small", 512, 512, 2048, 8, 6, 32128, false, true, Activation::kRelu},
    {"t5-base", 768, 768, 3072, 12, 12, 32128, false, true, Activation::kRelu},
    {"flan-t5-xl", 2048, 2048, 5120, 32, 24, 32128, true, true, Activation::kGeluTanh},
    {"gpt2", 768, 768, 3072, 12, 12, 50257, false, false, Activation::kGeluTanh},
};

struct StepSize {
  int64_t rows, beams, source, keys;  // rows: requests times beams
};

struct Flags {
  std::vector<std::string> models = {"t5-base", "gpt2"}, shapes = {"1", "8", "32", "128"};
  int64_t source = 128, keys = 64;
  bool parts = false, measures = false, whole_norms = false;
  std::string json;
};

// Owns the tensors of a benchmark in device memory, filled with random values or uninitialized. The
// destructor of Memory frees all tensors.
class Memory {
 public:
  explicit Memory(Device* device) : device_(device), stream_(&pool_, device) {}

  Stream& stream() { return stream_; }
  Tensor Random(DType dtype, std::initializer_list<int64_t> dims);
  Tensor Empty(DType dtype, std::initializer_list<int64_t> dims);
  LinearWeight Weight(int64_t n, int64_t k, bool gated = false);
  template <typename T>
  std::span<const T> Plan(const std::vector<T>& values);

 private:
  Device* device_;
  ThreadPool pool_{1};
  Stream stream_;
  std::vector<Buffer> blocks_;
  std::mt19937 generator_{1};
};

Tensor Memory::Empty(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = Tensor::Dense(static_cast<void*>(nullptr), dtype, dims);
  blocks_.push_back(
      Take(device_->Allocate(std::max<int64_t>(16, t.elements() * DTypeBytes(dtype)))));
  t.data = blocks_.back().data();
  return t;
}

Tensor Memory::Random(DType dtype, std::initializer_list<int64_t> dims) {
  const Tensor t = Empty(dtype, dims);
  std::vector<float> values(static_cast<size_t>(std::min<int64_t>(t.elements(), 999983)));
  for (float& v : values) v = static_cast<float>(generator_() >> 8) * 0x1p-23f - 1.0f;
  std::vector<char> bytes(values.size() * static_cast<size_t>(DTypeBytes(dtype)));
  ConvertFromF32(values.data(), static_cast<int64_t>(values.size()), dtype, bytes.data());
  const int64_t total = t.elements() * DTypeBytes(dtype);
  for (int64_t at = 0; at < total; at += static_cast<int64_t>(bytes.size())) {
    device_->CopyToDevice(static_cast<char*>(t.data) + at, bytes.data(),
                          std::min<int64_t>(total - at, bytes.size()));
  }
  CheckOk(device_->Synchronize());
  return t;
}

LinearWeight Memory::Weight(int64_t n, int64_t k, bool gated) {
  LinearWeight w = Take(LinearWeight::Allocate(n, k, WeightType::kBF16, gated, device_));
  // Each block of 64 rows of the weight is a copy of 64 * k consecutive values from one array of
  // random values. Each block begins at a different offset in that array, below kOffsets. Hence no
  // two rows are equal.
  constexpr int64_t kOffsets = 100'003;
  std::vector<float> values(static_cast<size_t>(64 * k + kOffsets));
  const float range = 1.0f / std::sqrt(static_cast<float>(k));
  for (float& v : values) {
    v = range * (static_cast<float>(generator_() >> 8) * 0x1p-23f - 1.0f);
  }
  for (int64_t row = 0; row < n; row += 64) {
    const float* from = values.data() + row * 997 % kOffsets;
    w.Pack(row, Tensor::F32(from, {std::min<int64_t>(64, n - row), k}));
  }
  return w;
}

template <typename T>
std::span<const T> Memory::Plan(const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  Buffer buffer = Take(device_->AllocatePinned(bytes));
  T* data = buffer.as<T>();
  std::copy(values.begin(), values.end(), data);
  device_->CopyH2D(data, bytes);
  blocks_.push_back(std::move(buffer));
  return {data, values.size()};
}

struct Layer {
  LinearWeight qkv, out, cross_q, cross_out, ffn_in, ffn_out;
};

// A decoder with the shape of a real model and random weights.
struct Decoder {
  Decoder(const ModelShape& shape, Device* device);

  const ModelShape& model;
  Memory memory;
  std::vector<Layer> layers;
  LinearWeight head;
  Tensor table, gamma, beta, bias;
};

Decoder::Decoder(const ModelShape& shape, Device* device) : model(shape), memory(device) {
  const int64_t d = model.d_model;
  for (int64_t i = 0; i < model.layers; ++i) {
    Layer layer;
    layer.qkv = memory.Weight(3 * model.inner, d);
    layer.out = memory.Weight(d, model.inner);
    if (model.cross) {
      layer.cross_q = memory.Weight(model.inner, d);
      layer.cross_out = memory.Weight(d, model.inner);
    }
    layer.ffn_in = memory.Weight(model.gated ? 2 * model.d_ff : model.d_ff, d, model.gated);
    layer.ffn_out = memory.Weight(d, model.d_ff);
    layers.push_back(std::move(layer));
  }
  head = memory.Weight(model.vocab, d);
  table = memory.Random(DType::kBF16, {model.vocab, d});
  gamma = memory.Random(DType::kF32, {d});
  if (model.cross) return;
  beta = memory.Random(DType::kF32, {d});
  bias = memory.Random(DType::kF32, {3 * model.d_ff});
}

class Step {
 public:
  // flags.measures: choose the GEMM algorithms by measuring them, as loading a model does;
  // otherwise use the library's default. flags.whole_norms: run every RMSNorm as one op. Otherwise
  // the GEMM before the norm computes the first half of it, and the GEMM after the norm the second
  // half (NormOutput).
  Step(const Decoder& decoder, const StepSize& size, const Flags& flags, Device* device);
  // Returns the median time in microseconds of a step that omits all ops of kind `left_out` ("":
  // omits none).
  double Micros(const std::string& left_out);
  // Maps each kind of op in a step ("qkv", "norm", ...) to the number of ops of that kind.
  const std::map<std::string, int>& kinds() const { return kinds_; }

 private:
  void PlanLengths();
  void Do(const char* kind, const std::function<void()>& op);
  void Queue();
  void QueueLayer(int64_t layer);
  void Normed(const char* kind, LinearArgs args);
  void Residual(const char* kind, const Tensor& x, const LinearWeight& w, const LinearWeight* next);
  void Attend(const char* kind, int64_t layer, bool cross);
  Tensor Heads(int part) const {
    return qkv_.Columns(part * model_.inner, (part + 1) * model_.inner)
        .SplitLast(model_.inner / model_.heads);
  }

  const Decoder& decoder_;
  const ModelShape& model_;
  const StepSize size_;
  const bool whole_norms_;
  Memory memory_;
  Stream& stream_;
  Tensor x_, qkv_, normed_, hidden_, states_, logits_, values_, indices_, scratch_, topk_scratch_;
  Tensor log_sums_, row_bias_;
  // Partial sums of x^2 for an RMSNorm that is split between two GEMMs: the first GEMM wrote these
  // sums here and x * gamma to normed_; the second one divides its result by the root mean square.
  // Tensor::defined() is false if the previous GEMM wrote no sums.
  Tensor squares_;
  Tensor square_memory_;
  KvCache cache_;
  std::span<const int32_t> ids_, new_slots_, offsets_, group_rows_, kv_lens_, source_lens_, slots_,
      source_slots_, ks_, entries_, log_softmax_;
  std::string left_out_;
  std::map<std::string, int> kinds_;
};

void Step::PlanLengths() {
  const int64_t groups = size_.rows / size_.beams, page = cache_.page_size;
  const int64_t own_pages = (size_.keys + page - 1) / page,
                source_pages = (size_.source + page - 1) / page;
  const auto ascending = [](int64_t n, int64_t step) {
    std::vector<int32_t> values(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<int32_t>(i * step);
    return values;
  };
  const auto equal = [](int64_t n, int64_t value) {
    return std::vector<int32_t>(static_cast<size_t>(n), static_cast<int32_t>(value));
  };
  std::vector<int32_t> slots, source, fresh;
  for (int64_t s = 0; s < size_.rows; ++s) {
    for (int64_t t = 0; t < size_.keys; ++t) {
      slots.push_back(static_cast<int32_t>(s * own_pages * page + t));
    }
    fresh.push_back(slots.back());
  }
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t t = 0; t < size_.source; ++t) {
      source.push_back(
          static_cast<int32_t>((size_.rows * own_pages + g * source_pages) * page + t));
    }
  }
  ids_ = memory_.Plan(ascending(size_.rows, 37));
  new_slots_ = memory_.Plan(fresh);
  offsets_ = memory_.Plan(ascending(size_.rows + 1, 1));
  group_rows_ = memory_.Plan(ascending(groups + 1, size_.beams));
  kv_lens_ = memory_.Plan(equal(size_.rows, size_.keys));
  source_lens_ = memory_.Plan(equal(groups, size_.source));
  slots_ = memory_.Plan(slots);
  source_slots_ = memory_.Plan(source);
  ks_ = memory_.Plan(equal(groups, size_.beams == 1 ? 1 : 2 * size_.beams));
  entries_ = memory_.Plan(ascending(groups + 1, size_.beams));
  log_softmax_ = memory_.Plan(equal(groups, 1));
}

Step::Step(const Decoder& decoder, const StepSize& size, const Flags& flags, Device* device)
    : decoder_(decoder),
      model_(decoder.model),
      size_(size),
      whole_norms_(flags.whole_norms),
      memory_(device),
      stream_(memory_.stream()) {
  const int64_t rows = size.rows, d = model_.d_model, groups = rows / size.beams;
  const auto pages = [](int64_t keys) { return (keys + 15) / 16; };
  cache_ = {.dtype = DType::kBF16,
            .pages = rows * pages(size.keys) + groups * pages(size.source),
            .layers = model_.layers,
            .heads = model_.heads,
            .page_size = 16,
            .head_dim = model_.inner / model_.heads};
  cache_.data = memory_.Random(DType::kBF16, {cache_.pages, cache_.page_elements()}).data;
  PlanLengths();
  x_ = memory_.Random(DType::kF32, {rows, d});
  qkv_ = memory_.Random(DType::kBF16, {rows, 3 * model_.inner});
  normed_ = memory_.Random(DType::kBF16, {rows, d});
  square_memory_ = memory_.Empty(DType::kF32, {rows, d / 16});
  hidden_ = memory_.Random(DType::kBF16, {rows, model_.d_ff});
  states_ = memory_.Random(DType::kF32, {rows, d});
  logits_ =
      memory_.Random(DType::kF32, {rows, LogitsStride(model_.vocab)}).Columns(0, model_.vocab);
  values_ = memory_.Empty(DType::kF32, {groups, ks_[0]});
  indices_ = memory_.Empty(DType::kI32, {groups, ks_[0]});
  log_sums_ = memory_.Empty(DType::kF32, {rows});
  row_bias_ = memory_.Random(DType::kF32, {rows});
  topk_scratch_ =
      memory_.Empty(DType::kI8, {TopKScratchBytes(rows, model_.vocab, ks_[0], stream_)});
  int64_t scratch = AttentionScratchBytes(rows, model_.heads, cache_.head_dim, stream_);
  const Layer& layer = decoder.layers[0];
  for (const LinearWeight* w :
       {&layer.qkv, &layer.out, &layer.ffn_in, &layer.ffn_out, &decoder.head}) {
    scratch = std::max(scratch, LinearScratchBytes(*w, rows, stream_));
  }
  scratch_ = memory_.Empty(DType::kI8, {scratch});
  constexpr int64_t kBudgetUs = 5'000'000;
  if (flags.measures) CheckOk(AutotuneGemms(*device, kBudgetUs, [this] { Queue(); }));
  Queue();  // warm-up: libraries load their kernels
  CheckOk(stream_.Synchronize());
  kinds_.clear();
  Queue();
  CheckOk(stream_.Synchronize());
}

void Step::Do(const char* kind, const std::function<void()>& op) {
  ++kinds_[kind];
  if (left_out_ != kind) op();
}

void Step::Normed(const char* kind, LinearArgs args) {
  args.scratch = scratch_;
  args.x = x_;
  if (!model_.cross) args.bias = decoder_.bias.Rows(0, args.w->n());
  if (squares_.defined()) {
    args.x = normed_;
    args.x_squares = std::exchange(squares_, {});
    args.norm_eps = 1e-6f;
  } else if (SupportsFusedNorm(args, stream_)) {
    args.norm_gamma = decoder_.gamma;
    args.norm_beta = decoder_.beta;
    args.norm_eps = 1e-6f;
  } else {
    Do("norm", [&] {
      if (model_.cross) {
        RmsNorm({.x = x_, .gamma = decoder_.gamma, .y = normed_}, stream_);
      } else {
        LayerNorm({.x = x_, .gamma = decoder_.gamma, .beta = decoder_.beta, .y = normed_}, stream_);
      }
    });
    args.x = normed_;
  }
  Do(kind, [&] { Linear(args, stream_); });
}

// Enqueues the GEMM x_ += x W^T, where x_ is the residual stream. `next` is the weight of the GEMM
// whose input is the RMSNorm of the new x_; null if there is none. Without --whole-norms, and if
// both GEMMs support it, the enqueued GEMM also computes the first half of that RMSNorm: x_ * gamma
// and partial sums of x_^2 (NormOutput).
void Step::Residual(const char* kind, const Tensor& x, const LinearWeight& w,
                    const LinearWeight* next) {
  LinearArgs args = {.x = x, .w = &w, .residual = x_, .y = x_, .scratch = scratch_};
  if (!model_.cross) args.bias = decoder_.bias.Rows(0, w.n());
  const int64_t rows = size_.rows, parts = SplitNormParts(w, rows, stream_);
  const bool halves = model_.cross && !whole_norms_ && next != nullptr && parts > 0;
  if (halves && SupportsSplitNormInput(*next, rows, stream_)) {
    squares_ = Tensor::Dense(square_memory_.data, DType::kF32, {rows, parts});
    args.next_norm = {decoder_.gamma, normed_, squares_};
  }
  Do(kind, [&] { Linear(args, stream_); });
}

void Step::Attend(const char* kind, int64_t layer, bool cross) {
  const Tensor q = Heads(0);
  Do(kind, [&] {
    Attention({.q = q,
               .out = q,
               .q_offsets = cross ? group_rows_ : offsets_,
               .cache = &cache_,
               .layer = layer,
               .slots = cross ? source_slots_.data() : slots_.data(),
               .slots_stride = cross ? size_.source : size_.keys,
               .kv_lens = cross ? source_lens_ : kv_lens_,
               .causal = !cross,
               .fresh = cross ? FreshKeys::kNone : FreshKeys::kOwn,
               .scale = 0.125f,
               .scratch = scratch_},
              stream_);
  });
}

void Step::QueueLayer(int64_t i) {
  const Layer& w = decoder_.layers[static_cast<size_t>(i)];
  const Tensor q = qkv_.Columns(0, model_.inner);
  const bool stores = SupportsKvStore(w.qkv, size_.rows, stream_);
  KvOutput kv;
  if (stores) kv = {.cache = &cache_, .layer = i, .slots = new_slots_};
  Normed("qkv", {.w = &w.qkv, .y = qkv_, .kv = kv});
  if (!stores) {
    Do("store", [&] {
      StoreKv({.k = Heads(1), .v = Heads(2), .cache = &cache_, .layer = i, .slots = new_slots_},
              stream_);
    });
  }
  Attend("self", i, false);
  Residual("out", q, w.out, model_.cross ? &w.cross_q : &w.ffn_in);
  if (model_.cross) {
    Normed("cross_q", {.w = &w.cross_q, .y = q});
    Attend("cross", i, true);
    Residual("out", q, w.cross_out, &w.ffn_in);
  }
  Normed("ffn_in", {.w = &w.ffn_in, .activation = model_.activation, .y = hidden_});
  const bool last = i + 1 == model_.layers;
  Residual("ffn_out", hidden_, w.ffn_out,
           last ? nullptr : &decoder_.layers[static_cast<size_t>(i + 1)].qkv);
}

void Step::Queue() {
  Do("embedding", [&] {
    Embedding({.ids = Tensor::Dense(ids_.data(), DType::kI32, {size_.rows}),
               .table = decoder_.table,
               .y = x_},
              stream_);
  });
  for (int64_t i = 0; i < model_.layers; ++i) QueueLayer(i);
  Do("final_norm", [&] { RmsNorm({.x = x_, .gamma = decoder_.gamma, .y = states_}, stream_); });
  Do("head", [&] {
    Linear({.x = states_, .w = &decoder_.head, .y = logits_, .scratch = scratch_}, stream_);
  });
  Do("select", [&] {
    TopKArgs args;
    args.scores = logits_;
    args.row_offsets = entries_;
    args.k = ks_;
    args.values = values_;
    args.indices = indices_;
    args.scratch = topk_scratch_;
    if (size_.beams > 1) {
      args.row_bias = row_bias_;
      args.log_sums = log_sums_;
      args.log_softmax = log_softmax_;
    }
    TopK(args, stream_);
  });
}

double Step::Micros(const std::string& left_out) {
  left_out_ = left_out;
  std::unique_ptr<CudaGraph> graph = stream_.device().CaptureGraph([&] { Queue(); });
  if (graph == nullptr) CheckOk(absl::InternalError("a step cannot be recorded"));
  auto queue = static_cast<cudaStream_t>(stream_.device().queue());
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  constexpr int kReplays = 4;  // launched back to back, so that the launch latency counts little
  for (int turn = 0; turn < 15; ++turn) {
    cudaEventRecord(begin, queue);
    for (int i = 0; i < kReplays; ++i) stream_.device().LaunchGraph(*graph);
    cudaEventRecord(end, queue);
    CheckOk(stream_.Synchronize());
    float elapsed = 0;
    cudaEventElapsedTime(&elapsed, begin, end);
    if (turn >= 3) times.push_back(elapsed * 1e3f / kReplays);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

Json Measure(const Decoder& decoder, const StepSize& size, const Flags& flags, Device* device) {
  Step step(decoder, size, flags, device);
  const std::string& name = decoder.model.name;
  const std::map<std::string, int> kinds = step.kinds();
  const double whole = step.Micros("");
  std::printf("%-10s rows %4lld beams %lld: %8.1f us |", name.c_str(),
              static_cast<long long>(size.rows), static_cast<long long>(size.beams), whole);
  Json row = {{"model", name},         {"rows", size.rows}, {"beams", size.beams},
              {"source", size.source}, {"keys", size.keys}, {"us", whole}};
  if (flags.parts) {
    for (const auto& [kind, count] : kinds) {
      const double each = (whole - step.Micros(kind)) / count;
      std::printf(" %s %dx%.2f", kind.c_str(), count, each);
      row["parts"][kind] = {{"count", count}, {"us_each", each}};
    }
  }
  std::printf("\n");
  std::fflush(stdout);
  return row;
}

StepSize SizeOf(const std::string& shape, const Flags& flags, bool cross) {
  const std::vector<std::string> parts = absl::StrSplit(shape, 'x');
  int64_t requests = 0, beams = 1;
  const bool known = parts.size() <= 2 && absl::SimpleAtoi(parts[0], &requests) &&
                     (parts.size() == 1 || absl::SimpleAtoi(parts[1], &beams));
  if (!known || requests < 1 || beams < 1) {
    CheckOk(absl::InvalidArgumentError("a shape is REQUESTS or REQUESTSxBEAMS: " + shape));
  }
  return {requests * beams, beams, flags.source, flags.keys + (cross ? 0 : flags.source)};
}

int Main(int argc, char** argv) {
  CLI::App app("Measures one decoder step on a GPU by op.");
  Flags flags;
  app.add_option("--models", flags.models, "Model shapes to measure.")->delimiter(',');
  app.add_option("--shapes", flags.shapes,
                 "Requests per step, or requests x beams, for example 32,8x4.")
      ->delimiter(',');
  app.add_option("--source", flags.source,
                 "Keys of cross-attention (T5) or prompt tokens (GPT-2).");
  app.add_option("--keys", flags.keys, "Keys of self-attention besides those of the prompt.");
  app.add_flag("--parts", flags.parts, "Also measure the cost of each kind of op.");
  app.add_flag("--measure", flags.measures, "Choose GEMM algorithms by measurement, as at load.");
  app.add_flag("--whole-norms", flags.whole_norms, "No GEMM computes half of a norm.");
  app.add_option("--json", flags.json, "Also write the results as JSON to this file.");
  CLI11_PARSE(app, argc, argv);
  std::unique_ptr<Device> device = Take(Device::Open(0));
  Json results = Json::array();
  for (const ModelShape& model : kModels) {
    if (std::count(flags.models.begin(), flags.models.end(), model.name) == 0) continue;
    const Decoder decoder(model, device.get());
    for (const std::string& shape : flags.shapes) {
      results.push_back(Measure(decoder, SizeOf(shape, flags, model.cross), flags, device.get()));
    }
  }
  if (flags.json.empty()) return 0;
  std::ofstream file(flags.json);
  file << Json{{"device", device->name()}, {"results", results}}.dump(1) << "\n";
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) { return quintet::Main(argc, argv); }
