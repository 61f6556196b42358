// encode_memory TOKENS [threads]: encodes one sequence of that many tokens with a model of
// T5-small's shape and random weights, and prints the process's peak memory. Run by
// tools/bench/encode_memory.sh for several lengths, one process each.
#include <sys/resource.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>
#include <vector>

#include "models/position.h"
#include "models/t5.h"

namespace quintet {
namespace {

ModelConfig T5SmallEncoder() {
  ModelConfig config;
  config.head = Head::kEncoder;
  config.vocab = 32128;
  config.d_model = 512;
  config.head_dim = 64;
  config.heads = 8;
  config.d_ff = 2048;
  config.encoder_layers = 6;
  return config;
}

class RandomWeights {
 public:
  explicit RandomWeights(ModelWeights* weights) : weights_(*weights) {}

  Tensor Values(int64_t rows, int64_t columns, float mean, float deviation) {
    weights_.storage.push_back(Buffer::Allocate(rows * columns * 4).value());
    float* values = weights_.storage.back().as<float>();
    std::normal_distribution<float> normal(mean, deviation);
    for (int64_t i = 0; i < rows * columns; ++i) values[i] = normal(random_);
    return rows == 1 ? Tensor::F32(values, {columns}) : Tensor::F32(values, {rows, columns});
  }

  LinearWeight Product(int64_t n, int64_t k) {
    LinearWeight weight = LinearWeight::Allocate(n, k, WeightType::kF32, false).value();
    weight.Pack(0, Values(n, k, 0, 0.04f));
    weights_.storage.pop_back();
    return weight;
  }

 private:
  ModelWeights& weights_;
  std::mt19937 random_{1};
};

ModelWeights MakeWeights(const ModelConfig& c) {
  ModelWeights weights;
  RandomWeights random(&weights);
  weights.embedding = random.Values(c.vocab, c.d_model, 0, 1);
  PositionParameters position;
  position.buckets = random.Values(c.bias_buckets, c.heads, 0, 1);
  const PositionBias bias = BuildPositionBias(c, false, position, &weights.storage).value();
  for (int64_t layer = 0; layer < c.encoder_layers; ++layer) {
    LayerWeights w;
    w.attention_norm = random.Values(1, c.d_model, 0.2f, 0.01f);
    w.qkv = random.Product(3 * c.inner(), c.d_model);
    w.attention_out = random.Product(c.d_model, c.inner());
    w.ffn_norm = random.Values(1, c.d_model, 0.2f, 0.01f);
    w.ffn_in = random.Product(c.d_ff, c.d_model);
    w.ffn_out = random.Product(c.d_model, c.d_ff);
    w.bias = bias;
    weights.encoder.layers.push_back(std::move(w));
  }
  weights.encoder.final_norm = random.Values(1, c.d_model, 1, 0.01f);
  return weights;
}

int64_t PeakBytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void Run(int64_t tokens, int threads) {
  ThreadPool pool(threads);
  const ModelConfig config = T5SmallEncoder();
  ModelLimits limits;
  limits.max_encode_tokens = tokens;
  auto model = NewT5Model(config, limits, MakeWeights(config), &pool).value();
  const int64_t loaded = PeakBytes();
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<int32_t>(i * 7919 % config.vocab));
  const std::vector<int32_t> offsets = {0, static_cast<int32_t>(tokens)};
  const double start = CpuSeconds();
  model->BeginEncode(ids, offsets);
  while (!model->EncodeSlice(4096)) {
  }
  const int64_t encode = PeakBytes() - loaded;
  std::printf(
      "%7" PRId64 " tokens: %8.1f MiB above the loaded model, %6.2f KiB a token, %8.1f s of CPU\n",
      tokens, static_cast<double>(encode) / (1 << 20),
      static_cast<double>(encode) / 1024 / static_cast<double>(tokens), CpuSeconds() - start);
}

}  // namespace
}  // namespace quintet

int main(int argc, char** argv) {
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 8192;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  if (tokens < 1 || tokens > (1 << 24) || threads < 1) {
    std::fprintf(stderr, "usage: encode_memory TOKENS [threads]\n");
    return 2;
  }
  quintet::Run(tokens, threads);
}
