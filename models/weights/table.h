// The table of every parameter of a model: its name and shape in converted checkpoints, its source
// tensors in Hugging Face's or FAT5's files, and its destination in memory. Both the loader and the
// converter use this table (models/weights/t5.cc, models/weights/gpt2.cc).
//
// Converted checkpoints (`quintet convert`) are standard safetensors files, single or sharded, that
// hold each packed parameter under the name of its field in models/weights/weights.h. Here I is
// heads * head_dim, and the .bias tensors of layers and norms exist only in GPT-2:
//
//   embedding.weight [vocab, d_model]      position_embedding.weight [max_positions, d_model]
//   {encoder,decoder}.layers.N.attention_norm.weight [d_model]         and .bias
//   {encoder,decoder}.layers.N.qkv.weight [3 I, d_model]: q, k, v      and .bias [3 I]
//   {encoder,decoder}.layers.N.attention_out.weight [d_model, I]       and .bias [d_model]
//   decoder.layers.N.{cross_norm [d_model], cross_q [I, d_model], cross_out [d_model, I]}.weight
//   encoder.layers.N.global_norm.weight [d_model]: LongT5 with transient-global attention
//   {encoder,decoder}.layers.N.ffn_norm.weight [d_model]               and .bias
//   {encoder,decoder}.layers.N.ffn_in.weight [d_ff, d_model], gated [2 d_ff, d_model]: gate rows,
//     then up rows, not interleaved                                    and .bias [d_ff]
//   {encoder,decoder}.layers.N.ffn_out.weight [d_model, d_ff]          and .bias [d_model]
//   {encoder,decoder}.layers.N.position.*: layer 0 (UMT5: every layer), see position.h
//   {encoder,decoder}.final_norm.weight [d_model]                      and .bias
//   decoder.cross_kv.weight [decoder_layers * 2 * I, d_model]: layer, k|v, head, head_dim
//   head.weight [vocab, d_model]: language models; absent where it equals embedding.weight
//   classifier_dense.{weight,bias}, classifier.{weight,bias}: task heads
//
// All matrices are [out, in] in F32, BF16, F16, I8 or F8_E4M3. An I8 or F8_E4M3 matrix NAME.weight
// has row scales in NAME.scales, F32 [out] (value = stored * scale). ffn_out is F8_E4M3 only if it
// was in the source. Embeddings and vectors are F32, BF16 or F16. config.json keeps the original
// fields and adds
//   "quintet": {"format": 1, "dtype": "f32|bf16|f16|int8|fp8", "scale_logits": true|false,
//               "weights_sha256": "..."}
// where scale_logits is the loader's decision for the source (ModelConfig::scale_logits), and
// weights_sha256 is the SHA-256 of the model.safetensors that `quintet convert` wrote to the same
// directory (not of the source's file).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/linear/weight.h"
#include "models/checkpoint/weight_files.h"
#include "models/config/config.h"
#include "models/weights/position.h"
#include "models/weights/weights.h"

namespace quintet {

enum class WeightKind : uint8_t {
  kVector,  // stored as f32
  kTable,   // stored in the file's dtype, read by row
  kMatrix,  // packed for GEMMs
};

// Where consecutive rows of a parameter come from: one tensor of the source checkpoint.
struct WeightSource {
  std::vector<std::string> names;  // aliases: the first in the file is used; no `transformer.`
  int64_t rows = 0;
  bool transposed = false;  // the source tensor is [in, out]
};

struct WeightSlot {
  std::string name;  // name in converted checkpoints
  WeightKind kind = WeightKind::kMatrix;
  std::vector<int64_t> shape;  // rows first
  bool gated = false;
  // True for ffn_out, whose inputs have the largest range: fp8 models do not convert this matrix to
  // fp8 but keep 16 or 32 bits per value.
  bool wide = false;
  std::vector<WeightSource> sources;
  LinearWeight* matrix = nullptr;  // destination of a kMatrix
  Tensor* tensor = nullptr;        // destination of the other kinds
};

// Memory into which the checkpoint's parameters are loaded. encoder_position and decoder_position
// have one entry per layer, which holds the layer's position parameters; the PositionBias tables
// are computed from them (position.h). In a layer without position parameters the entry's tensors
// are undefined (Tensor::defined() is false).
struct WeightDestinations {
  ModelWeights weights;
  std::vector<PositionParameters> encoder_position, decoder_position;
};

// Returns the parameters of a model with this configuration, in the order in which a converted file
// stores them. Resizes *destinations for the configuration. The returned slots point into
// *destinations, which must therefore outlive them.
std::vector<WeightSlot> BuildWeightTable(const ModelConfig& config,
                                         WeightDestinations* destinations);

// Consecutive rows of a parameter (WeightSlot) and the checkpoint's tensor that contains them.
struct WeightPiece {
  const StoredTensor* values = nullptr;
  const StoredTensor* scales = nullptr;  // row scales of I8 and F8_E4M3 values
  int64_t row = 0;                       // first row within the parameter
  int64_t rows = 0;
  bool transposed = false;
};

struct PlannedWeight {
  WeightSlot slot;
  std::vector<WeightPiece> pieces;  // cover all rows of the slot, in order
  int64_t rows() const { return slot.shape.empty() ? 1 : slot.shape[0]; }
  int64_t columns() const;  // elements per row
};

// Finds every parameter in the files of a checkpoint (converted or not) and sets
// config->scale_logits. A matrix NAME.weight in I8 or F8_E4M3 needs row scales in NAME.scales.
// INVALID_ARGUMENT lists all tensors that are missing, unexpected, or have a wrong shape or an
// unsupported dtype.
absl::StatusOr<std::vector<PlannedWeight>> PlanWeights(const WeightFiles& files,
                                                       ModelConfig* config,
                                                       WeightDestinations* destinations);

// Size in bytes of the `staging` buffer that VisitRows needs for `rows` rows.
int64_t StagingBytes(const PlannedWeight& weight, int64_t rows);

// Reads rows [begin, end) of a parameter. Calls visit(row, values, scales) for each run of n rows
// that come from one tensor; `row` is the first row of the run. values: [n, columns] in the file's
// dtype with any strides. scales: [n] f32; an undefined tensor unless values are i8 or f8. Both
// tensors are in `staging` and valid only during the call of `visit`. Returns INVALID_ARGUMENT if
// the file is truncated or contains a NaN or an infinity.
absl::Status VisitRows(
    const WeightFiles& files, const PlannedWeight& weight, int64_t begin, int64_t end,
    void* staging,
    absl::FunctionRef<void(int64_t row, const Tensor& values, const Tensor& scales)> visit);

// Converts row `row` of the arguments of `visit` to f32: out [columns]. i8 and fp8 values are
// multiplied by the row's scale.
void RowToF32(const Tensor& values, const Tensor& scales, int64_t row, float* out);

// Returns the name of a matrix that `changes` change and that the checkpoint stores as i8 or fp8;
// empty if there is none. The values of such a matrix would be rounded a second time.
std::string QuantizedChange(const std::vector<PlannedWeight>& plan, const WeightChanges& changes);

}  // namespace quintet
