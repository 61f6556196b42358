// The parts of the parameter table that differ between families.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear/weight.h"
#include "models/weights/table.h"

namespace quintet {

// Collects the parameters (WeightSlot) of a model. Every function except KeepWide and Take adds one
// parameter. `name` is its name in converted checkpoints; `names` are its possible names in source
// checkpoints, without the prefix `transformer.`; `to` is its destination in memory.
class WeightTableBuilder {
 public:
  using Names = std::vector<std::string>;

  void Vector(const std::string& name, std::vector<int64_t> shape, const Names& names, Tensor* to);
  void Table(const std::string& name, int64_t rows, int64_t columns, const Names& names,
             Tensor* to);
  // A [rows, columns] matrix from one source tensor.
  void Matrix(const std::string& name, int64_t rows, int64_t columns, const Names& names,
              LinearWeight* to);
  // A [rows, columns] matrix whose source tensor is stored as [columns, rows].
  void Transposed(const std::string& name, int64_t rows, int64_t columns, const Names& names,
                  LinearWeight* to);
  // A [rows, columns] matrix that is the concatenation of several source tensors with equal numbers
  // of rows. If `gated` is true, there are two source tensors: gate, then up.
  void Stacked(const std::string& name, int64_t rows, int64_t columns,
               const std::vector<Names>& sources, bool gated, LinearWeight* to);

  // Marks the matrix that was added last as one that fp8 models keep in 16 or 32 bits
  // (WeightSlot::wide).
  void KeepWide() { slots_.back().wide = true; }

  std::vector<WeightSlot> Take() { return std::move(slots_); }

 private:
  void Add(const std::string& name, WeightKind kind, std::vector<int64_t> shape,
           const std::vector<Names>& sources);
  std::vector<WeightSlot> slots_;
};

// Each of these functions adds the parameters of a model to *table: AddT5Weights for T5, mT5, UMT5,
// LongT5 and FAT5 (models/weights/t5.cc), AddGpt2Weights for GPT-2 (models/weights/gpt2.cc).
void AddT5Weights(const ModelConfig& config, WeightDestinations* destinations,
                  WeightTableBuilder* table);
void AddGpt2Weights(const ModelConfig& config, WeightDestinations* destinations,
                    WeightTableBuilder* table);

// True for tensors in Hugging Face's files that no forward pass needs; the loader ignores them.
// Aliases of a parameter are not such tensors: WeightSource::names lists them.
bool IsIgnoredT5Tensor(const ModelConfig& config, const std::string& name);
bool IsIgnoredGpt2Tensor(const std::string& name);

// Returns an error if a tensor of this name shows that the file has a layout that the loader does
// not support; else OK.
absl::Status CheckT5Layout(const ModelConfig& config, const std::string& name);

}  // namespace quintet
