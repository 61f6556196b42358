// A golden checkpoint that a test can change before it loads it, and a function that returns all
// loaded values in one vector.
#pragma once

#include <string>
#include <vector>

#include "kernels/linear/weight.h"
#include "models/weights/weights.h"
#include "nlohmann/json.hpp"
#include "tests/catch.h"
#include "tests/models/checkpoint/checkpoint.h"

namespace quintet {

// A golden checkpoint that a test can change before it is loaded.
struct Checkpoint {
  explicit Checkpoint(const std::string& golden)
      : config(nlohmann::json::parse(FileBytes(GoldenDirectory(golden) + "/config.json"))),
        tensors(ReadTensors(GoldenDirectory(golden))) {}

  absl::StatusOr<ModelWeights> Load(WeightType type = WeightType::kF32, int threads = 2) {
    TemporaryDirectory directory;
    WriteTensors(directory.path(), tensors);
    return LoadFrom(directory.path(), type, threads);
  }
  absl::StatusOr<ModelWeights> LoadFrom(const std::string& directory, WeightType type,
                                        int threads) {
    WriteBytes(directory + "/config.json", config.dump());
    auto read = ReadModelConfig(directory);
    if (!read.ok()) return read.status();
    model = *read;
    ThreadPool pool(threads);
    return LoadWeights(directory, &model, {.type = type}, &pool);
  }
  std::string Problem() {
    const auto weights = Load();
    CHECK(!weights.ok());
    return std::string(weights.status().message());
  }
  void Rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    REQUIRE(!node.empty());
    node.key() = to;
    tensors.insert(std::move(node));
  }

  nlohmann::json config;
  TestTensors tensors;
  ModelConfig model;  // loaded by the last Load
};

inline std::vector<float> Rows(const LinearWeight& w, int64_t begin, int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * w.k()));
  w.Unpack(begin, Tensor::F32(values.data(), {rows, w.k()}));
  return values;
}

inline std::vector<float> Values(const Tensor& t) {
  std::vector<float> values(static_cast<size_t>(t.elements()));
  ConvertToF32(t.data, t.dtype, t.elements(), values.data());
  return values;
}

// Returns all weights of a loaded model in one vector, always in the same order, so that a test can
// compare two models.
inline std::vector<float> Everything(const ModelWeights& w) {
  std::vector<float> all;
  const auto add = [&all](const std::vector<float>& values) {
    all.insert(all.end(), values.begin(), values.end());
  };
  const auto add_matrix = [&](const LinearWeight& m) {
    if (m.defined()) add(Rows(m, 0, m.n()));
  };
  const auto add_tensor = [&](const Tensor& t) {
    if (t.defined()) add(Values(t));
  };
  for (const StackWeights* stack : {&w.encoder, &w.decoder}) {
    for (const LayerWeights& l : stack->layers) {
      for (const LinearWeight* m :
           {&l.qkv, &l.attention_out, &l.cross_q, &l.cross_out, &l.ffn_in, &l.ffn_out}) {
        add_matrix(*m);
      }
      for (const Tensor* t :
           {&l.attention_norm, &l.attention_norm_beta, &l.qkv_bias, &l.attention_out_bias,
            &l.cross_norm, &l.ffn_norm, &l.ffn_norm_beta, &l.ffn_in_bias, &l.ffn_out_bias,
            &l.bias.table, &l.bias.segment_slope}) {
        add_tensor(*t);
      }
    }
    add_tensor(stack->final_norm);
    add_tensor(stack->final_norm_beta);
  }
  add_tensor(w.embedding);
  add_tensor(w.position_embedding);
  for (const LinearWeight* m : {&w.cross_kv, &w.head, &w.classifier_dense, &w.classifier})
    add_matrix(*m);
  add_tensor(w.classifier_bias);
  add_tensor(w.classifier_dense_bias);
  return all;
}

}  // namespace quintet
