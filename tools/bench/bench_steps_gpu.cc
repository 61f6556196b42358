// A decoder's step on a GPU, part by part: what each op costs where it stands, between its
// neighbours in a recorded step.
//
//   bench_steps_gpu [--models t5-base,gpt2] [--rows 1,32,128] [--beams 1] [--source 128] [--keys
//   64]
//                   [--parts] [--json FILE]
//
// The step of a model of the real shape with random bf16 weights is recorded once whole and once
// without each kind of op; what a kind costs is the difference, divided by how many there are.
// Times are medians of replays.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/kv_cache.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/selection.h"

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
  bool gated, cross;  // cross: T5, otherwise GPT-2
  Activation activation;
};

const ModelShape kModels[] = {
    {"t5-small", 512, 512, 2048, 8, 6, 32128, false, true, Activation::kRelu},
    {"t5-base", 768, 768, 3072, 12, 12, 32128, false, true, Activation::kRelu},
    {"flan-t5-xl", 2048, 2048, 5120, 32, 24, 32128, true, true, Activation::kGeluTanh},
    {"gpt2", 768, 768, 3072, 12, 12, 50257, false, false, Activation::kGeluTanh},
};

struct StepSize {
  int64_t rows, beams, source, keys;
};

struct Layer {
  LinearWeight qkv, out, cross_q, cross_out, ffn_in, ffn_out;
};

class Step {
 public:
  Step(const ModelShape& model, const StepSize& size, Device* device);
  // Median time of a step without the ops of one kind ("": of the whole).
  double Micros(const std::string& left_out);
  // How many ops of each kind there are.
  const std::map<std::string, int>& kinds() const { return kinds_; }

 private:
  Tensor Random(DType dtype, std::initializer_list<int64_t> dims);
  Tensor Empty(DType dtype, std::initializer_list<int64_t> dims);
  LinearWeight Weight(int64_t n, int64_t k, bool gated = false);
  template <typename T>
  absl::Span<const T> Plan(const std::vector<T>& values);
  void PlanLengths();
  void Do(const char* kind, const std::function<void()>& op);
  void Queue();
  void QueueLayer(int64_t layer);
  void Normed(const char* kind, LinearArgs args);
  void Attend(const char* kind, int64_t layer, bool cross);
  Tensor Heads(int part) const {
    return qkv_.Columns(part * model_.inner, (part + 1) * model_.inner)
        .SplitLast(model_.inner / model_.heads);
  }

  const ModelShape& model_;
  const StepSize size_;
  ThreadPool pool_;
  Stream stream_;
  std::vector<Buffer> memory_;
  std::mt19937 generator_{1};
  std::vector<Layer> layers_;
  LinearWeight head_;
  Tensor table_, gamma_, beta_, bias_;
  Tensor x_, qkv_, normed_, hidden_, states_, logits_, values_, indices_, scratch_, topk_scratch_;
  Tensor log_sums_, row_bias_;
  KvCache cache_;
  absl::Span<const int32_t> ids_, new_slots_, offsets_, group_rows_, kv_lens_, source_lens_, slots_,
      source_slots_, ks_, entries_, log_softmax_;
  std::string left_out_;
  std::map<std::string, int> kinds_;
};

Tensor Step::Empty(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t = Tensor::Dense(static_cast<void*>(nullptr), dtype, dims);
  memory_.push_back(
      Take(stream_.Allocate(std::max<int64_t>(16, t.elements() * DTypeBytes(dtype)))));
  t.data = memory_.back().data();
  return t;
}

Tensor Step::Random(DType dtype, std::initializer_list<int64_t> dims) {
  const Tensor t = Empty(dtype, dims);
  std::vector<float> values(static_cast<size_t>(std::min<int64_t>(t.elements(), 999983)));
  for (float& v : values) v = static_cast<float>(generator_() >> 8) * 0x1p-23f - 1.0f;
  std::vector<char> bytes(values.size() * static_cast<size_t>(DTypeBytes(dtype)));
  ConvertFromF32(values.data(), static_cast<int64_t>(values.size()), dtype, bytes.data());
  const int64_t total = t.elements() * DTypeBytes(dtype);
  for (int64_t at = 0; at < total; at += static_cast<int64_t>(bytes.size())) {
    stream_.device().CopyToDevice(static_cast<char*>(t.data) + at, bytes.data(),
                                  std::min<int64_t>(total - at, bytes.size()));
  }
  CheckOk(stream_.Synchronize());
  return t;
}

LinearWeight Step::Weight(int64_t n, int64_t k, bool gated) {
  LinearWeight w = Take(LinearWeight::Allocate(n, k, WeightType::kBF16, gated, &stream_.device()));
  // Every 64 rows begin elsewhere in the same values: no two rows are equal.
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
absl::Span<const T> Step::Plan(const std::vector<T>& values) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  Buffer buffer = Take(stream_.AllocateMirrored(bytes));
  T* data = buffer.as<T>();
  std::copy(values.begin(), values.end(), data);
  stream_.Upload(data, bytes);
  memory_.push_back(std::move(buffer));
  return {data, values.size()};
}

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
  ids_ = Plan(ascending(size_.rows, 37));
  new_slots_ = Plan(fresh);
  offsets_ = Plan(ascending(size_.rows + 1, 1));
  group_rows_ = Plan(ascending(groups + 1, size_.beams));
  kv_lens_ = Plan(equal(size_.rows, size_.keys));
  source_lens_ = Plan(equal(groups, size_.source));
  slots_ = Plan(slots);
  source_slots_ = Plan(source);
  ks_ = Plan(equal(groups, size_.beams == 1 ? 1 : 2 * size_.beams));
  entries_ = Plan(ascending(groups + 1, size_.beams));
  log_softmax_ = Plan(equal(groups, 1));
}

Step::Step(const ModelShape& model, const StepSize& size, Device* device)
    : model_(model), size_(size), pool_(1), stream_(&pool_, device) {
  const int64_t rows = size.rows, d = model.d_model, groups = rows / size.beams;
  const auto pages = [](int64_t keys) { return (keys + 15) / 16; };
  cache_ = {.dtype = DType::kBF16,
            .pages = rows * pages(size.keys) + groups * pages(size.source),
            .layers = model.layers,
            .heads = model.heads,
            .page_size = 16,
            .head_dim = model.inner / model.heads};
  cache_.data = Random(DType::kBF16, {cache_.pages, cache_.page_elements()}).data;
  PlanLengths();
  for (int64_t i = 0; i < model.layers; ++i) {
    Layer layer;
    layer.qkv = Weight(3 * model.inner, d);
    layer.out = Weight(d, model.inner);
    if (model.cross)
      layer.cross_q = Weight(model.inner, d), layer.cross_out = Weight(d, model.inner);
    layer.ffn_in = Weight(model.gated ? 2 * model.d_ff : model.d_ff, d, model.gated);
    layer.ffn_out = Weight(d, model.d_ff);
    layers_.push_back(std::move(layer));
  }
  head_ = Weight(model.vocab, d);
  table_ = Random(DType::kBF16, {model.vocab, d});
  gamma_ = Random(DType::kF32, {d});
  if (!model.cross) beta_ = Random(DType::kF32, {d}), bias_ = Random(DType::kF32, {3 * model.d_ff});
  x_ = Random(DType::kF32, {rows, d});
  qkv_ = Random(DType::kBF16, {rows, 3 * model.inner});
  normed_ = Random(DType::kBF16, {rows, d});
  hidden_ = Random(DType::kBF16, {rows, model.d_ff});
  states_ = Random(DType::kF32, {rows, d});
  logits_ = Random(DType::kF32, {rows, (model.vocab + 63) / 64 * 64}).Columns(0, model.vocab);
  values_ = Empty(DType::kF32, {groups, ks_[0]});
  indices_ = Empty(DType::kI32, {groups, ks_[0]});
  log_sums_ = Empty(DType::kF32, {rows});
  row_bias_ = Random(DType::kF32, {rows});
  topk_scratch_ = Empty(DType::kI8, {TopKScratchBytes(rows, model.vocab, ks_[0], stream_)});
  int64_t scratch = AttentionScratchBytes(model.heads, cache_.head_dim, stream_);
  for (const LinearWeight* w :
       {&layers_[0].qkv, &layers_[0].out, &layers_[0].ffn_in, &layers_[0].ffn_out, &head_}) {
    scratch = std::max(scratch, LinearScratchBytes(*w, rows, stream_));
  }
  scratch_ = Empty(DType::kI8, {scratch});
  Queue();  // libraries choose and load their kernels
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
  if (!model_.cross) args.bias = bias_.Rows(0, args.w->n());
  if (LinearTakesNorm(*args.w, size_.rows, stream_)) {
    args.norm_gamma = gamma_;
    args.norm_beta = beta_;
    args.norm_eps = 1e-6f;
  } else {
    Do("norm", [&] {
      if (model_.cross) {
        RmsNorm({.x = x_, .gamma = gamma_, .y = normed_}, stream_);
      } else {
        LayerNorm({.x = x_, .gamma = gamma_, .beta = beta_, .y = normed_}, stream_);
      }
    });
    args.x = normed_;
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
               .scale = 0.125f,
               .scratch = scratch_},
              stream_);
  });
}

void Step::QueueLayer(int64_t i) {
  const Layer& w = layers_[static_cast<size_t>(i)];
  const auto residual = [&](const char* kind, const Tensor& x, const LinearWeight& weight) {
    LinearArgs args = {.x = x, .w = &weight, .residual = x_, .y = x_, .scratch = scratch_};
    if (!model_.cross) args.bias = bias_.Rows(0, weight.n());
    Do(kind, [&] { Linear(args, stream_); });
  };
  const Tensor q = qkv_.Columns(0, model_.inner);
  const bool stores = LinearStoresKv(w.qkv, size_.rows, stream_);
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
  residual("out", q, w.out);
  if (model_.cross) {
    Normed("cross_q", {.w = &w.cross_q, .y = q});
    Attend("cross", i, true);
    residual("out", q, w.cross_out);
  }
  Normed("ffn_in", {.w = &w.ffn_in, .activation = model_.activation, .y = hidden_});
  residual("ffn_out", hidden_, w.ffn_out);
}

void Step::Queue() {
  Do("embedding", [&] {
    Embedding(
        {.ids = Tensor::Dense(ids_.data(), DType::kI32, {size_.rows}), .table = table_, .y = x_},
        stream_);
  });
  for (int64_t i = 0; i < model_.layers; ++i) QueueLayer(i);
  Do("final_norm", [&] { RmsNorm({.x = x_, .gamma = gamma_, .y = states_}, stream_); });
  Do("head",
     [&] { Linear({.x = states_, .w = &head_, .y = logits_, .scratch = scratch_}, stream_); });
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
  std::unique_ptr<DeviceGraph> graph = stream_.device().Record([&] { Queue(); });
  if (graph == nullptr) CheckOk(absl::InternalError("a step cannot be recorded"));
  auto queue = static_cast<cudaStream_t>(stream_.device().queue());
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::vector<float> times;
  constexpr int kReplays =
      4;  // one after the other: what comes before the first kernel counts little
  for (int turn = 0; turn < 15; ++turn) {
    cudaEventRecord(begin, queue);
    for (int i = 0; i < kReplays; ++i) stream_.device().Replay(*graph);
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

Json Measure(const ModelShape& model, const StepSize& size, bool parts, Device* device) {
  Step step(model, size, device);
  const std::map<std::string, int> kinds = step.kinds();
  const double whole = step.Micros("");
  std::printf("%-10s rows %4lld beams %lld: %8.1f us |", model.name.c_str(),
              static_cast<long long>(size.rows), static_cast<long long>(size.beams), whole);
  Json row = {{"model", model.name},   {"rows", size.rows}, {"beams", size.beams},
              {"source", size.source}, {"keys", size.keys}, {"us", whole}};
  if (parts) {
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

int Main(int argc, char** argv) {
  CLI::App app("A decoder's step on a GPU, part by part");
  std::vector<std::string> models = {"t5-base", "gpt2"};
  std::vector<int64_t> rows = {1, 8, 32, 128};
  int64_t beams = 1, source = 128, keys = 64;
  bool parts = false;
  std::string json;
  app.add_option("--models", models, "Shapes")->delimiter(',');
  app.add_option("--rows", rows, "Sequences of a step, beams counted")->delimiter(',');
  app.add_option("--beams", beams, "Of each request");
  app.add_option("--source", source, "Keys of cross-attention");
  app.add_option("--keys", keys, "Keys of self-attention");
  app.add_flag("--parts", parts, "Also what each kind of op costs");
  app.add_option("--json", json, "Also write the results to this file");
  CLI11_PARSE(app, argc, argv);
  std::unique_ptr<Device> device = Take(Device::Open(0));
  Json results = Json::array();
  for (const std::string& name : models) {
    for (const ModelShape& model : kModels) {
      if (model.name != name) continue;
      for (const int64_t n : rows) {
        results.push_back(Measure(model, {n, beams, source, model.cross ? keys : keys + source},
                                  parts, device.get()));
      }
    }
  }
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << Json{{"device", device->name()}, {"results", results}}.dump(1) << "\n";
  return file.good() ? 0 : 1;
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) { return quintet::Main(argc, argv); }
