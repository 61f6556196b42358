// The parts of the parameter table that differ between families.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "models/weights/table.h"

namespace quintet {

// Collects slots: every call but KeepWide adds one. Source names have no `transformer.` prefix.
class WeightTableBuilder {
 public:
  using Names = std::vector<std::string>;

  void Vector(const std::string& name, std::vector<int64_t> shape, const Names& names, Tensor* to);
  void Table(const std::string& name, int64_t rows, int64_t columns, const Names& names,
             Tensor* to);
  // A [rows, columns] matrix from one source tensor.
  void Matrix(const std::string& name, int64_t rows, int64_t columns, const Names& names,
              LinearWeight* to);
  // As Matrix, but the source tensor is [columns, rows].
  void Transposed(const std::string& name, int64_t rows, int64_t columns, const Names& names,
                  LinearWeight* to);
  // A matrix stacked from source tensors of equal height. gated: two sources, gate and up.
  void Stacked(const std::string& name, int64_t rows, int64_t columns,
               const std::vector<Names>& sources, bool gated, LinearWeight* to);

  // Marks the last matrix as one that fp8 models keep in a wider dtype.
  void KeepWide() { slots_.back().wide = true; }

  std::vector<WeightSlot> Take() { return std::move(slots_); }

 private:
  void Add(const std::string& name, WeightKind kind, std::vector<int64_t> shape,
           const std::vector<Names>& sources);
  std::vector<WeightSlot> slots_;
};

// T5, mT5, UMT5 and FAT5 (models/weights/t5.cc); GPT-2 (models/weights/gpt2.cc).
void AddT5Weights(const ModelConfig& config, WeightDestinations* destinations,
                  WeightTableBuilder* table);
void AddGpt2Weights(const ModelConfig& config, WeightDestinations* destinations,
                    WeightTableBuilder* table);

// True for known tensors of Hugging Face's files that are not needed. (Aliases of a slot are
// handled by its names.)
bool IsIgnoredT5Tensor(const ModelConfig& config, const std::string& name);
bool IsIgnoredGpt2Tensor(const std::string& name);

// OK, or an error if a tensor of this name shows that the file has an unsupported layout.
absl::Status CheckT5Layout(const ModelConfig& config, const std::string& name);

}  // namespace quintet
