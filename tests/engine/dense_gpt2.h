// GPT-2 as plain loops in double precision over every pair of rows: the reference for scores with
// any mask. Equations as in Hugging Face's modeling_gpt2.py.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "models/config/config.h"

namespace quintet {

class DenseGpt2 {
 public:
  // Loads a Hugging Face directory with gelu_new and tied embeddings; aborts if it cannot be read.
  explicit DenseGpt2(const std::string& directory);

  // Returns the log-softmax of the logits of every row, [tokens, vocab]. Row q attends to row k if
  // sees(q, k) is true.
  std::vector<std::vector<double>> LogProbs(
      const std::vector<int32_t>& tokens,
      const std::function<bool(int64_t q, int64_t k)>& sees) const;

  const ModelConfig& config() const { return config_; }

 private:
  using Vector = std::vector<double>;
  using Rows = std::vector<Vector>;

  const std::vector<float>& Weights(const std::string& name) const;
  Rows Norm(const Rows& x, const std::string& name) const;
  Rows Conv1D(const Rows& x, const std::string& name) const;
  Rows Attend(const Rows& qkv, int64_t layer,
              const std::function<bool(int64_t q, int64_t k)>& sees) const;

  ModelConfig config_;
  std::map<std::string, std::vector<float>> weights_;
};

}  // namespace quintet
