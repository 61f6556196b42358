// The modules of a sentence-transformers directory, which turn hidden states into an embedding.
// modules.json lists them: a Transformer (the model of the directory itself), one Pooling, then any
// number of Dense and Normalize modules. Their configurations and weights are in sub-directories.
// Results equal those of sentence_transformers 6.2 (its sentence_transformer/modules).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config/config.h"

namespace quintet {

// Pooling modes: how the hidden states x [rows, width] of an input are combined into its embedding.
enum class Pooling : uint8_t {
  kNone,          // x: one row per token
  kMean,          // mean over the rows
  kFirst,         // the first row ("cls")
  kLast,          // the last row
  kMax,           // maximum over the rows
  kMeanSqrtLen,   // sum over the rows / sqrt(rows)
  kWeightedMean,  // sum of (i + 1) x[i] / sum of (i + 1)
  kModules,       // as SentenceModules::poolings; kMean for a model without modules.json
};

// A module after the pooling. Dense: y = f(x W^T + b), where f is the activation; then x itself or
// a projection of x is added to y if the module has a residual connection. Normalize: y = x /
// max(|x|, 1e-12), where |x| is the Euclidean norm.
struct SentenceLayer {
  enum class Activation : uint8_t { kIdentity, kTanh, kRelu, kGelu, kSilu, kSigmoid };
  enum class Residual : uint8_t { kNone, kInput, kProjected };

  bool normalizes = false;  // Normalize; all other members are those of Dense
  int64_t in = 0, out = 0;
  Activation activation = Activation::kTanh;
  Residual residual = Residual::kNone;
  std::vector<float> weight;           // [in, out]: the file's matrix, transposed
  std::vector<float> bias;             // [out], or empty
  std::vector<float> residual_weight;  // [in, out] for kProjected, transposed as well
};

// Immutable, thread safe.
struct SentenceModules {
  std::vector<Pooling> poolings = {Pooling::kMean};  // results are concatenated in this order
  bool include_prompt = true;                        // false: pooling leaves out the prompt's rows
  std::vector<SentenceLayer> layers;
  int64_t columns = 0;     // number of values of an embedding
  int64_t max_tokens = 0;  // texts are truncated to it, as sentence-transformers does; 0: no limit
  std::map<std::string, std::string> prompts;  // by name; "query" and "document" always exist
  std::string default_prompt;                  // name of the prompt for every text; empty: none
};

// Reads the modules of `directory`; null if it has no modules.json. Returns INVALID_ARGUMENT for
// damaged files and for sizes that do not fit together. Returns UNIMPLEMENTED for modules and
// settings that Quintet does not support, because ignoring them would give wrong results. Messages
// name the file and the field.
absl::StatusOr<std::unique_ptr<const SentenceModules>> ReadSentenceModules(
    const std::string& directory, const ModelConfig& config, bool follow_symlinks = false);

// Returns the sub-directories that modules.json in `directory` names; empty if there is no
// modules.json.
absl::StatusOr<std::vector<std::string>> SentenceModuleFolders(const std::string& directory);

// Applies one Dense or Normalize module. `values` holds the module's input (layer.in numbers),
// which is replaced by its result (layer.out numbers).
void ApplySentenceLayer(const SentenceLayer& layer, std::vector<float>* values);

}  // namespace quintet
