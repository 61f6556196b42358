#include "models/adapters/merge.h"

#include <algorithm>

namespace quintet {
namespace {

// row += scale * b A. b: [rank], one row of B; `sums` is scratch [columns].
void AddFactors(const LoraFactors& f, const float* b, std::vector<float>* sums, float* row) {
  const int64_t columns = f.module.columns;
  sums->assign(static_cast<size_t>(columns), 0.0f);
  for (int64_t i = 0; i < f.rank; ++i) {
    const float factor = b[i];
    const float* a = f.a.data() + i * columns;
    float* const sum = sums->data();
    for (int64_t c = 0; c < columns; ++c) sum[c] += factor * a[c];
  }
  for (int64_t c = 0; c < columns; ++c) row[c] += f.scale * (*sums)[static_cast<size_t>(c)];
}

}  // namespace

MergedParameter::MergedParameter(const Adapter& adapter, const std::string& parameter) {
  for (const LoraFactors& f : adapter.factors) {
    if (f.module.parameter == parameter) factors_.push_back(&f);
  }
  for (const SavedTensor& s : adapter.saved) {
    if (s.tensor.parameter == parameter) saved_ = &s;
  }
}

void MergedParameter::Apply(int64_t row, int64_t rows, int64_t columns, float* values) const {
  if (saved_ != nullptr) {
    std::copy_n(saved_->values.data() + row * columns, rows * columns, values);
  }
  std::vector<float> sums;
  for (const LoraFactors* f : factors_) {
    const int64_t begin = std::max(row, f->module.row);
    const int64_t end = std::min(row + rows, f->module.row + f->module.rows);
    for (int64_t r = begin; r < end; ++r) {
      AddFactors(*f, f->b.data() + (r - f->module.row) * f->rank, &sums,
                 values + (r - row) * columns);
    }
  }
}

AdapterMerge::AdapterMerge(const Adapter& adapter) {
  const auto add = [&](const std::string& name) {
    parameters_.try_emplace(name, MergedParameter(adapter, name));
  };
  for (const LoraFactors& f : adapter.factors) add(f.module.parameter);
  for (const SavedTensor& s : adapter.saved) add(s.tensor.parameter);
}

bool AdapterMerge::Change(const std::string& parameter) const {
  return parameters_.count(parameter) > 0;
}

void AdapterMerge::Apply(const std::string& parameter, int64_t row, int64_t rows, int64_t columns,
                         float* values) const {
  parameters_.at(parameter).Apply(row, rows, columns, values);
}

}  // namespace quintet
