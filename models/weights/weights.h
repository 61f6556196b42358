// All parameters of a model, packed for GEMMs. LoadWeights fills them from a checkpoint of any
// supported family; the forward passes read them (models/t5.cc, models/gpt2.cc). Vectors (norms,
// biases) are f32. The embedding keeps the file's dtype. Immutable after loading.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention/position_bias.h"
#include "kernels/base/tensor.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/weight.h"
#include "kernels/runtime/buffer.h"
#include "kernels/runtime/thread_pool.h"
#include "models/config/config.h"

namespace quintet {

// Weights of one layer of an encoder or decoder. I = heads * head_dim. Weights that the model's
// family does not have are undefined: their defined() is false.
struct LayerWeights {
  Tensor attention_norm;       // [d_model]
  Tensor attention_norm_beta;  // [d_model], GPT-2
  LinearWeight qkv;            // [3 I, d_model]: q, k, v
  Tensor qkv_bias;             // [3 I], GPT-2
  LinearWeight attention_out;  // [d_model, I]
  Tensor global_norm;          // [d_model], LongT5: norm of the global tokens
  Tensor attention_out_bias;   // [d_model], GPT-2

  Tensor cross_norm;       // [d_model]; decoders with an encoder
  LinearWeight cross_q;    // [I, d_model]
  LinearWeight cross_out;  // [d_model, I]

  Tensor ffn_norm;       // [d_model]
  Tensor ffn_norm_beta;  // [d_model], GPT-2
  LinearWeight ffn_in;   // [d_ff, d_model], or gated [2 d_ff, d_model]: gate (wi_0), up (wi_1)
  Tensor ffn_in_bias;    // [d_ff], GPT-2
  LinearWeight ffn_out;  // [d_model, d_ff]
  Tensor ffn_out_bias;   // [d_model], GPT-2

  // Position bias of self-attention. All layers of a stack have the same one, except in UMT5, where
  // each layer has its own.
  PositionBias bias;
  PositionBias global_bias;  // LongT5: bias of the global tokens (GlobalKeys)
};

struct StackWeights {
  std::vector<LayerWeights> layers;
  Tensor final_norm;       // [d_model]
  Tensor final_norm_beta;  // [d_model], GPT-2
};

struct ModelWeights {
  DType activations = DType::kF32;  // dtype of activations (ActivationType)
  Tensor embedding;                 // [vocab, d_model] f32|bf16|f16
  Tensor position_embedding;        // [max_positions, d_model] f32|bf16|f16, GPT-2
  StackWeights encoder, decoder;
  // K and V of every decoder layer's cross-attention. The rows are ordered by layer, in a layer K
  // before V, then by head, then by index within the head.
  LinearWeight cross_kv;     // [decoder_layers * 2 * I, d_model]
  LinearWeight head;         // [vocab, d_model], language models
  float logit_scale = 1.0f;  // d_model^-0.5 or 1

  // Weights of the classification heads. The dense layer exists only for sequence classification in
  // T5 and FAT5.
  LinearWeight classifier_dense;  // [d_model, d_model]
  Tensor classifier_dense_bias;   // [d_model]
  LinearWeight classifier;        // [labels, d_model]
  Tensor classifier_bias;         // [labels], undefined for GPT-2

  bool changed = false;         // WeightOptions::changes were made
  int64_t parameters = 0;       // number of stored values; shared tensors count once
  int64_t bytes = 0;            // memory held by the weights
  std::vector<Buffer> storage;  // owns the memory of the Tensors above
};
using SharedWeights = std::shared_ptr<const ModelWeights>;

// If the requested type quantises inputs (QuantizesInputs), matrices with fewer columns than this
// get the type of the same dtype that does not: their GEMMs are bound by memory, and quantising the
// inputs takes longer than it saves.
constexpr int64_t kMinQuantizedInputs = 1024;

// Changes that are made to parameters while they are loaded. Thread safe.
class WeightChanges {
 public:
  virtual ~WeightChanges() = default;
  // Whether there are changes to this parameter (WeightSlot::name).
  virtual bool Change(const std::string& parameter) const = 0;
  // Changes rows [row, row + rows) of the parameter, given as values [rows, columns] f32, dense.
  virtual void Apply(const std::string& parameter, int64_t row, int64_t rows, int64_t columns,
                     float* values) const = 0;
};

struct WeightOptions {
  WeightType type = WeightType::kF32;
  Device* device = nullptr;      // where the weights are stored; null: CPU
  bool follow_symlinks = false;  // allow weight files that are symbolic links
  // Changes to the values while they are loaded; null: none. If they change a matrix that the
  // checkpoint stores as int8 or fp8, which would be rounded twice, none is made.
  const WeightChanges* changes = nullptr;
};

// Reads every tensor of the checkpoint once, in parallel on the pool, directly into its packed
// position. Peak memory exceeds the size of the loaded weights by at most a few per cent. Sets
// config->scale_logits. With options.device, all tensors are in device memory, and the biases of
// the QKV and first feed-forward GEMMs have the activation dtype.
//
// INVALID_ARGUMENT lists all tensors that are missing, unexpected or of a wrong shape. The other
// errors are those of WeightFiles::Open, which refuses some symbolic links unless
// options.follow_symlinks is true, and RESOURCE_EXHAUSTED if host or device memory is insufficient.
absl::StatusOr<ModelWeights> LoadWeights(const std::string& directory, ModelConfig* config,
                                         const WeightOptions& options, ThreadPool* pool);

// Like LoadWeights, but neither reads nor allocates matrices and embeddings. Of matrices only the
// shapes are set; embeddings remain undefined tensors. Used to compute sizes: `parameters` and
// `bytes` equal those of LoadWeights.
absl::StatusOr<ModelWeights> DescribeWeights(const std::string& directory, ModelConfig* config,
                                             const WeightOptions& options, ThreadPool* pool);

}  // namespace quintet
