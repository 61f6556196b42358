#include "models/verify_merge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/safetensors.h"
#include "models/config/config.h"
#include "models/weights/table.h"

namespace quintet {
namespace {

// An opened model directory: its weights are listed, but their values are not read yet.
struct Checkpoint {
  SafetensorsReader files;
  ModelConfig config;
  WeightDestinations destinations;
  std::vector<PlannedWeight> plan;
};

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& directory, bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(directory));
  QT_ASSIGN_OR_RETURN(SafetensorsReader files, SafetensorsReader::Open(directory, follow_symlinks));
  WeightDestinations destinations;
  QT_ASSIGN_OR_RETURN(std::vector<PlannedWeight> plan, PlanWeights(files, &config, &destinations));
  return Checkpoint{std::move(files), std::move(config), std::move(destinations), std::move(plan)};
}

// Pseudo-random inputs in [-1, 1], the same in every run.
std::vector<double> SampleInput(int64_t n) {
  std::vector<double> x(static_cast<size_t>(n));
  uint64_t state = 1;
  for (double& value : x) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<double>(state >> 33) / static_cast<double>(uint64_t{1} << 30) - 1.0;
  }
  return x;
}

// Returns the matrix-vector product W x [rows]; reads the parameter W from the files.
absl::StatusOr<std::vector<double>> Apply(const SafetensorsReader& files, const PlannedWeight& w,
                                          const std::vector<double>& x) {
  constexpr int64_t kBlockValues = int64_t{1} << 20;
  const int64_t rows = w.rows(), columns = w.columns();
  const int64_t block = std::clamp<int64_t>(kBlockValues / columns, 1, rows);
  std::vector<char> staging(static_cast<size_t>(StagingBytes(w, block)));
  std::vector<double> y(static_cast<size_t>(rows));
  std::vector<float> row(static_cast<size_t>(columns));
  for (int64_t begin = 0; begin < rows; begin += block) {
    QT_RETURN_IF_ERROR(VisitRows(
        files, w, begin, std::min(rows, begin + block), staging.data(),
        [&](int64_t first, const Tensor& values, const Tensor& scales) {
          const int64_t element = DTypeBytes(values.dtype);
          const int64_t step = values.rank > 1 ? values.stride[1] : 1;
          for (int64_t r = 0; r < values.dim[0]; ++r) {
            const char* at = values.as<char>() + r * values.stride[0] * element;
            double sum = 0.0;
            if (step == 1) {
              ConvertToF32(at, values.dtype, columns, row.data());
            } else {
              for (int64_t c = 0; c < columns; ++c) {
                ConvertToF32(at + c * step * element, values.dtype, 1,
                             &row[static_cast<size_t>(c)]);
              }
            }
            for (int64_t c = 0; c < columns; ++c) {
              sum += x[static_cast<size_t>(c)] * row[static_cast<size_t>(c)];
            }
            y[static_cast<size_t>(first + r)] = scales.defined() ? sum * scales.f32()[r] : sum;
          }
        }));
  }
  return y;
}

// y += scale * B (A x), for the rows of one module.
void AddFactors(const LoraFactors& f, const std::vector<double>& x, std::vector<double>* y) {
  std::vector<double> shrunk(static_cast<size_t>(f.rank));
  const int64_t columns = f.module.columns;
  for (int64_t i = 0; i < f.rank; ++i) {
    double sum = 0.0;
    for (int64_t c = 0; c < columns; ++c) {
      sum += static_cast<double>(f.a[static_cast<size_t>(i * columns + c)]) *
             x[static_cast<size_t>(c)];
    }
    shrunk[static_cast<size_t>(i)] = f.scale * sum;
  }
  for (int64_t r = 0; r < f.module.rows; ++r) {
    double sum = 0.0;
    for (int64_t i = 0; i < f.rank; ++i) {
      sum += shrunk[static_cast<size_t>(i)] * f.b[static_cast<size_t>(r * f.rank + i)];
    }
    (*y)[static_cast<size_t>(f.module.row + r)] += sum;
  }
}

// Returns the product W x, where W [rows, x.size()] is a tensor of modules_to_save.
std::vector<double> ApplySaved(const SavedTensor& saved, const std::vector<double>& x) {
  std::vector<double> y(saved.values.size() / x.size());
  for (size_t r = 0; r < y.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) y[r] += x[c] * saved.values[r * x.size() + c];
  }
  return y;
}

double RelativeError(const std::vector<double>& result, const std::vector<double>& expected) {
  double difference = 0.0, largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = std::abs(result[i] - expected[i]);
    if (!std::isfinite(d)) return std::numeric_limits<double>::infinity();
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference == 0.0 ? 0.0 : difference / largest;
}

}  // namespace

absl::StatusOr<std::vector<StageError>> CompareMerged(const std::string& source,
                                                      const Adapter& adapter,
                                                      const std::string& result,
                                                      bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(const Checkpoint base, OpenCheckpoint(source, follow_symlinks));
  QT_ASSIGN_OR_RETURN(const Checkpoint merged, OpenCheckpoint(result, false));
  if (base.plan.size() != merged.plan.size()) {
    return absl::FailedPreconditionError("the two models have different parameters");
  }
  std::vector<StageError> errors;
  for (size_t i = 0; i < base.plan.size(); ++i) {
    const PlannedWeight& weight = base.plan[i];
    const std::string& name = weight.slot.name;
    if (!adapter.Changes(name)) continue;
    if (merged.plan[i].slot.name != name || merged.plan[i].slot.shape != weight.slot.shape) {
      return absl::FailedPreconditionError(absl::StrCat(name, ": the two models differ in shape"));
    }
    const std::vector<double> x = SampleInput(weight.columns());
    QT_ASSIGN_OR_RETURN(std::vector<double> expected, Apply(base.files, weight, x));
    for (const SavedTensor& saved : adapter.saved) {
      if (saved.tensor.parameter == name) expected = ApplySaved(saved, x);
    }
    for (const LoraFactors& factors : adapter.factors) {
      if (factors.module.parameter == name) AddFactors(factors, x, &expected);
    }
    QT_ASSIGN_OR_RETURN(const std::vector<double> y, Apply(merged.files, merged.plan[i], x));
    errors.push_back({name, RelativeError(y, expected)});
  }
  return errors;
}

}  // namespace quintet
