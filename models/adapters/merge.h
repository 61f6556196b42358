// Adds a LoRA adapter to the weights of its base model: W + scale * B A, one parameter at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/adapters/adapter.h"
#include "models/weights/weights.h"

namespace quintet {

// The changes of an adapter to one parameter (WeightSlot::name). Immutable; threads may share it.
class MergedParameter {
 public:
  // `adapter` must outlive this object.
  MergedParameter(const Adapter& adapter, const std::string& parameter);
  bool changes() const { return !factors_.empty() || saved_ != nullptr; }
  // Changes rows [row, row + rows) of the parameter, given as values [rows, columns] f32, dense.
  // Sums are f32. A tensor of modules_to_save replaces the values; factors of the same module are
  // added to it.
  void Apply(int64_t row, int64_t rows, int64_t columns, float* values) const;

 private:
  std::vector<const LoraFactors*> factors_;
  const SavedTensor* saved_ = nullptr;
};

// All changes of an adapter, to be made while the base model is loaded.
class AdapterMerge final : public WeightChanges {
 public:
  // `adapter` must outlive this object.
  explicit AdapterMerge(const Adapter& adapter);
  bool Change(const std::string& parameter) const override;
  void Apply(const std::string& parameter, int64_t row, int64_t rows, int64_t columns,
             float* values) const override;

 private:
  std::map<std::string, MergedParameter> parameters_;  // those that the adapter changes
};

}  // namespace quintet
