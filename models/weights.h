// All parameters of a model, packed for the matrix products: filled by LoadWeights from any
// checkpoint of these families, read by the forward passes (models/t5.cc, models/gpt2.cc). Vectors
// (norms, biases) are f32; the embedding keeps the file's dtype. Immutable once loaded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/buffer.h"
#include "kernels/linear.h"
#include "kernels/position_bias.h"
#include "kernels/thread_pool.h"
#include "models/config.h"

namespace quintet {

// One layer of an encoder or decoder. Fields that the family does not have are undefined. I = heads
// * head_dim.
struct LayerWeights {
  Tensor attention_norm;       // [d_model]
  Tensor attention_norm_beta;  // [d_model], GPT-2
  LinearWeight qkv;            // [3 I, d_model]: q, k, v
  Tensor qkv_bias;             // [3 I], GPT-2
  LinearWeight attention_out;  // [d_model, I]
  Tensor attention_out_bias;   // [d_model], GPT-2

  Tensor cross_norm;       // [d_model], decoder with an encoder
  LinearWeight cross_q;    // [I, d_model]
  LinearWeight cross_out;  // [d_model, I]

  Tensor ffn_norm;       // [d_model]
  Tensor ffn_norm_beta;  // [d_model], GPT-2
  LinearWeight ffn_in;   // [d_ff, d_model], or gated [2 d_ff, d_model]: gate (wi_0), up (wi_1)
  Tensor ffn_in_bias;    // [d_ff], GPT-2
  LinearWeight ffn_out;  // [d_model, d_ff]
  Tensor ffn_out_bias;   // [d_model], GPT-2

  // Of self-attention. Layers of a stack share its tables, unless the family has one a layer.
  PositionBias bias;
};

struct StackWeights {
  std::vector<LayerWeights> layers;
  Tensor final_norm;       // [d_model]
  Tensor final_norm_beta;  // [d_model], GPT-2
};

struct ModelWeights {
  DType activations = DType::kF32;  // ActivationType of what these weights are
  Tensor embedding;                 // [vocab, d_model] f32|bf16|f16
  Tensor position_embedding;        // [max_positions, d_model] f32|bf16|f16, GPT-2
  StackWeights encoder, decoder;
  // Keys and values of every decoder layer's cross-attention: rows (layer, k|v, head, head_dim).
  LinearWeight cross_kv;     // [decoder_layers * 2 * I, d_model]
  LinearWeight head;         // [vocab, d_model], language models
  float logit_scale = 1.0f;  // d_model^-0.5 or 1

  // Task heads. dense: sequence classification of T5 and FAT5 only.
  LinearWeight classifier_dense;  // [d_model, d_model]
  Tensor classifier_dense_bias;   // [d_model]
  LinearWeight classifier;        // [labels, d_model]
  Tensor classifier_bias;         // [labels], undefined for GPT-2

  int64_t parameters = 0;       // stored values, shared ones once
  int64_t bytes = 0;            // resident
  std::vector<Buffer> storage;  // behind the Tensors above
};

struct WeightOptions {
  WeightType type = WeightType::kF32;
  Device* device = nullptr;      // where the weights go; null: the CPU
  bool follow_symlinks = false;  // of files
};

// Reads every tensor once, with the pool's threads, straight into its packed place: peak memory
// stays within a few per cent of the result. Settles config->scale_logits. On a device everything
// that a forward pass reads is device memory, and biases of products whose results are activations
// have the activations' type.
//
// INVALID_ARGUMENT lists all missing, extra and misshapen tensors at once; symbolic links are
// refused unless asked for; RESOURCE_EXHAUSTED when there is no memory.
absl::StatusOr<ModelWeights> LoadWeights(const std::string& directory, ModelConfig* config,
                                         const WeightOptions& options, ThreadPool* pool);

// The same without reading or holding matrices and embeddings, for sizing: shapes, `parameters` and
// `bytes` are those of LoadWeights.
absl::StatusOr<ModelWeights> DescribeWeights(const std::string& directory, ModelConfig* config,
                                             const WeightOptions& options, ThreadPool* pool);

}  // namespace quintet
