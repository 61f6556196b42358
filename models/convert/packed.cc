#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "kernels/linear/weight.h"
#include "models/adapters/merge.h"
#include "models/convert/weights.h"
#include "models/weights/table.h"

namespace quintet {
namespace {

constexpr int64_t kPackedBlockBytes = int64_t{8} << 20;

DType Wider(DType a, DType b) { return a == b ? a : DType::kF32; }

// Returns the dtype in which the source files store a parameter. A parameter may consist of several
// source tensors, such as q, k and v; if their dtypes differ, returns f32.
DType SourceType(const PlannedWeight& weight) {
  std::optional<DType> type;
  for (const WeightPiece& piece : weight.pieces) {
    const DType own = ToDType(piece.values->type).value_or(DType::kF32);
    type = type ? Wider(*type, own) : own;
  }
  return type.value_or(DType::kF32);
}

// True if the weight is a language-model head equal to the embedding. Such a head is not written to
// the file; the loader uses the embedding instead.
bool IsTiedHead(const PlannedWeight& weight, const std::vector<PlannedWeight>& plan) {
  if (weight.slot.kind != WeightKind::kMatrix || weight.pieces.size() != 1) return false;
  for (const PlannedWeight& other : plan) {
    if (other.slot.kind == WeightKind::kTable && other.pieces.size() == 1 &&
        other.pieces[0].values == weight.pieces[0].values) {
      return true;
    }
  }
  return false;
}

// Returns the common dtype of all matrices, or f32 if they differ. ffn_out, which fp8 models keep
// in a wider dtype, is ignored if all other matrices are fp8.
DType CommonType(const std::vector<PlannedWeight>& plan) {
  std::optional<DType> type;
  for (const bool wide : {false, true}) {
    if (wide && type == DType::kF8) break;
    for (const PlannedWeight& weight : plan) {
      if (weight.slot.kind != WeightKind::kMatrix || weight.slot.wide != wide) continue;
      if (IsTiedHead(weight, plan)) continue;
      type = type ? Wider(*type, SourceType(weight)) : SourceType(weight);
    }
  }
  return type.value_or(DType::kF32);
}

DType TargetType(const PlannedWeight& weight, DType wanted) {
  switch (weight.slot.kind) {
    case WeightKind::kVector:
      return DType::kF32;
    case WeightKind::kTable:
      return IsQuantized(wanted) ? SourceType(weight) : wanted;
    case WeightKind::kMatrix:
      return wanted == DType::kF8 && weight.slot.wide ? SourceType(weight) : wanted;
  }
  return DType::kF32;
}

std::string ScalesName(const std::string& name) {
  return absl::StrCat(absl::StripSuffix(name, ".weight"), ".scales");
}

// Writes parameters to the file one after the other, in blocks of rows. An i8 or fp8 parameter is
// followed by its row scales.
class PackedStream {
 public:
  // `adapter` may be null.
  PackedStream(const WeightFiles& files, const Adapter* adapter, WeightsWriter* writer)
      : files_(files), adapter_(adapter), writer_(writer) {}

  absl::Status Write(const PlannedWeight& weight, DType type) {
    merged_.reset();
    if (adapter_ != nullptr && adapter_->Changes(weight.slot.name)) {
      merged_.emplace(*adapter_, weight.slot.name);
    }
    scales_.clear();
    const int64_t rows = weight.rows(), block = BlockRows(weight);
    staging_.resize(StagingBytes(weight, block));
    for (int64_t begin = 0; begin < rows; begin += block) {
      absl::Status converted;
      const absl::Status read =
          VisitRows(files_, weight, begin, std::min(rows, begin + block), staging_.data(),
                    [&](int64_t row, const Tensor& values, const Tensor& scales) {
                      if (converted.ok()) converted = WriteRun(weight, type, row, values, scales);
                    });
      QT_RETURN_IF_ERROR(read);
      QT_RETURN_IF_ERROR(converted);
    }
    if (!IsQuantized(type)) return absl::OkStatus();
    return writer_->Append(scales_.data(), static_cast<int64_t>(scales_.size()) * 4);
  }

 private:
  // Rows per block. If a source tensor must be transposed, all rows are one block, because each row
  // of the result has elements from every row of the source tensor.
  static int64_t BlockRows(const PlannedWeight& weight) {
    for (const WeightPiece& piece : weight.pieces) {
      if (piece.transposed) return weight.rows();
    }
    return std::clamp<int64_t>(kPackedBlockBytes / 4 / std::max<int64_t>(weight.columns(), 1), 1,
                               std::max<int64_t>(weight.rows(), 1));
  }

  // Writes rows [row, row + values.dim[0]) of a parameter.
  absl::Status WriteRun(const PlannedWeight& weight, DType type, int64_t row, const Tensor& values,
                        const Tensor& scales) {
    const int64_t rows = values.dim[0], columns = values.dim[1];
    encoded_.resize(rows * columns * DTypeBytes(type));
    if (IsQuantized(type) && values.dtype == type) {
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(encoded_.data() + r * columns, values.Rows(r, r + 1).data, columns);
        scales_.push_back(scales.f32()[r]);
      }
      return writer_->Append(encoded_.data(), rows * columns);
    }
    floats_.resize(rows * columns);
    for (int64_t r = 0; r < rows; ++r) RowToF32(values, scales, r, floats_.data() + r * columns);
    if (merged_.has_value()) merged_->Apply(row, rows, columns, floats_.data());
    if (IsQuantized(type)) {
      const size_t first = scales_.size();
      scales_.resize(first + rows);
      QuantizeRows(Tensor::F32(floats_.data(), {rows, columns}),
                   Tensor::Dense(encoded_.data(), type, {rows, columns}),
                   Tensor::F32(scales_.data() + first, {rows}));
    } else {
      QT_RETURN_IF_ERROR(
          Encode(floats_.data(), rows * columns, type, weight.slot.name, encoded_.data()));
    }
    return writer_->Append(encoded_.data(), rows * columns * DTypeBytes(type));
  }

  const WeightFiles& files_;
  const Adapter* adapter_;
  WeightsWriter* writer_;
  std::optional<MergedParameter> merged_;  // what the adapter changes in the current parameter
  std::vector<char> staging_, encoded_;
  std::vector<float> floats_, scales_;
};

// Returns FAILED_PRECONDITION if the adapter changes a quantised matrix.
absl::Status CheckMergeable(const std::vector<PlannedWeight>& plan, const Adapter& adapter) {
  const std::string quantized = QuantizedChange(plan, AdapterMerge(adapter));
  if (quantized.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the source is quantised (", quantized,
                   "); merge the adapter into the original checkpoint, with --dtype for the type "
                   "of the result"));
}

}  // namespace

absl::StatusOr<ConvertResult> WritePackedWeights(const WeightFiles& files, ModelConfig* config,
                                                 const ConvertOptions& options,
                                                 const std::string& path) {
  const Adapter* const adapter = options.adapter;
  WeightDestinations destinations;
  QT_ASSIGN_OR_RETURN(std::vector<PlannedWeight> plan, PlanWeights(files, config, &destinations));
  if (adapter != nullptr) QT_RETURN_IF_ERROR(CheckMergeable(plan, *adapter));
  const DType wanted = options.dtype.value_or(CommonType(plan));
  std::vector<TensorSpec> specs;
  std::vector<const PlannedWeight*> stored;
  for (const PlannedWeight& weight : plan) {
    const bool changed = adapter != nullptr && adapter->Changes(weight.slot.name);
    if (IsTiedHead(weight, plan) && !changed) continue;
    stored.push_back(&weight);
    const DType type = TargetType(weight, wanted);
    specs.push_back({weight.slot.name, ToStoredType(type), weight.slot.shape});
    if (IsQuantized(type)) {
      specs.push_back({ScalesName(weight.slot.name), StoredType::kF32, {weight.rows()}});
    }
  }
  QT_ASSIGN_OR_RETURN(WeightsWriter writer, WeightsWriter::Create(path, specs, options.progress));
  PackedStream stream(files, adapter, &writer);
  for (const PlannedWeight* weight : stored) {
    QT_RETURN_IF_ERROR(stream.Write(*weight, TargetType(*weight, wanted)));
  }
  absl::StatusOr<ConvertResult> result = writer.Finish();
  if (result.ok()) result->dtype = wanted;
  return result;
}

}  // namespace quintet
