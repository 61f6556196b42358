#include "tests/engine/dense_gpt2.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

constexpr char kPrefix[] = "transformer.";

double GeluNew(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

void Add(const std::vector<std::vector<double>>& more, std::vector<std::vector<double>>* x) {
  for (size_t r = 0; r < x->size(); ++r) {
    for (size_t i = 0; i < (*x)[r].size(); ++i) (*x)[r][i] += more[r][i];
  }
}

}  // namespace

DenseGpt2::DenseGpt2(const std::string& directory) {
  const auto config = ReadModelConfig(directory);
  QT_CHECK(config.ok());
  config_ = *config;
  const auto reader = SafetensorsReader::Open(directory);
  QT_CHECK(reader.ok());
  for (const StoredTensor& tensor : reader->tensors()) {
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes));
    QT_CHECK(reader->Read(tensor, 0, tensor.bytes, bytes.data()).ok());
    const DType dtype = *ToDType(tensor.type);
    const int64_t count = tensor.bytes / DTypeBytes(dtype);
    std::string name = tensor.name;
    if (name.rfind(kPrefix, 0) == 0) name = name.substr(sizeof(kPrefix) - 1);
    std::vector<float>& values = weights_[name];
    values.resize(static_cast<size_t>(count));
    ConvertToF32(bytes.data(), dtype, count, values.data());
  }
}

const std::vector<float>& DenseGpt2::Weights(const std::string& name) const {
  return weights_.at(name);
}

DenseGpt2::Rows DenseGpt2::Norm(const Rows& x, const std::string& name) const {
  const auto& gamma = Weights(name + ".weight");
  const auto& beta = Weights(name + ".bias");
  Rows y = x;
  for (Vector& row : y) {
    const double n = static_cast<double>(row.size());
    double mean = 0, variance = 0;
    for (const double v : row) mean += v / n;
    for (const double v : row) variance += (v - mean) * (v - mean) / n;
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = (row[i] - mean) / std::sqrt(variance + config_.norm_eps) * gamma[i] + beta[i];
    }
  }
  return y;
}

// weight [in, out].
DenseGpt2::Rows DenseGpt2::Conv1D(const Rows& x, const std::string& name) const {
  const auto& weight = Weights(name + ".weight");
  const auto& bias = Weights(name + ".bias");
  Rows y;
  for (const Vector& row : x) {
    Vector out(bias.begin(), bias.end());
    for (size_t i = 0; i < row.size(); ++i) {
      for (size_t o = 0; o < out.size(); ++o) out[o] += row[i] * weight[i * out.size() + o];
    }
    y.push_back(std::move(out));
  }
  return y;
}

DenseGpt2::Rows DenseGpt2::Attend(const Rows& qkv, int64_t layer,
                                  const std::function<bool(int64_t q, int64_t k)>& sees) const {
  const int64_t inner = config_.inner(), rows = static_cast<int64_t>(qkv.size());
  double scale = config_.attention_scale;
  if (config_.scale_by_inverse_layer) scale /= static_cast<double>(layer + 1);
  Rows out(qkv.size(), Vector(static_cast<size_t>(inner)));
  for (int64_t first = 0; first < inner; first += config_.head_dim) {
    for (int64_t q = 0; q < rows; ++q) {
      Vector weights(qkv.size());
      double sum = 0;
      for (int64_t k = 0; k < rows; ++k) {
        if (!sees(q, k)) continue;
        double score = 0;
        for (int64_t c = first; c < first + config_.head_dim; ++c) {
          score += qkv[q][c] * qkv[k][inner + c];
        }
        sum += weights[k] = std::exp(scale * score);
      }
      for (int64_t k = 0; k < rows; ++k) {
        for (int64_t c = first; c < first + config_.head_dim; ++c) {
          out[q][c] += weights[k] / sum * qkv[k][2 * inner + c];
        }
      }
    }
  }
  return out;
}

std::vector<std::vector<double>> DenseGpt2::LogProbs(
    const std::vector<int32_t>& tokens,
    const std::function<bool(int64_t q, int64_t k)>& sees) const {
  const auto& embedding = Weights("wte.weight");
  const auto& positions = Weights("wpe.weight");
  const size_t width = static_cast<size_t>(config_.d_model);
  Rows x;
  for (size_t r = 0; r < tokens.size(); ++r) {
    Vector row(width);
    for (size_t i = 0; i < width; ++i) {
      row[i] = double{embedding[tokens[r] * width + i]} + positions[r * width + i];
    }
    x.push_back(std::move(row));
  }
  for (int64_t layer = 0; layer < config_.decoder_layers; ++layer) {
    const std::string block = "h." + std::to_string(layer) + ".";
    const Rows qkv = Conv1D(Norm(x, block + "ln_1"), block + "attn.c_attn");
    Add(Conv1D(Attend(qkv, layer, sees), block + "attn.c_proj"), &x);
    Rows hidden = Conv1D(Norm(x, block + "ln_2"), block + "mlp.c_fc");
    for (Vector& row : hidden) std::transform(row.begin(), row.end(), row.begin(), GeluNew);
    Add(Conv1D(hidden, block + "mlp.c_proj"), &x);
  }
  Rows log_probs;
  for (const Vector& state : Norm(x, "ln_f")) {
    Vector logits(static_cast<size_t>(config_.vocab));
    double sum = 0;
    for (size_t v = 0; v < logits.size(); ++v) {
      for (size_t i = 0; i < width; ++i) logits[v] += state[i] * embedding[v * width + i];
      sum += std::exp(logits[v]);
    }
    for (double& v : logits) v -= std::log(sum);
    log_probs.push_back(std::move(logits));
  }
  return log_probs;
}

}  // namespace quintet
