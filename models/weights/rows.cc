#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/weights/table.h"

namespace quintet {
namespace {

// True if all n values are finite. The values are passed as bits; `exponent` is the mask of the
// exponent bits, which are all set in NaN and infinity. A plain loop, which compilers vectorize.
template <typename Bits>
bool AllFinite(const void* data, int64_t n, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(data);
  Bits found = 0;
  for (int64_t i = 0; i < n; ++i) found |= static_cast<Bits>((bits[i] & exponent) == exponent);
  return found == 0;
}

absl::Status CheckFinite(const StoredTensor& tensor, DType dtype, const void* data, int64_t n) {
  bool finite = true;
  if (dtype == DType::kF32) finite = AllFinite<uint32_t>(data, n, 0x7f800000u);
  if (dtype == DType::kBF16) finite = AllFinite<uint16_t>(data, n, 0x7f80);
  if (dtype == DType::kF16) finite = AllFinite<uint16_t>(data, n, 0x7c00);
  if (dtype == DType::kF8) finite = AllFinite<uint8_t>(data, n, 0x7f);
  if (finite) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", Printable(tensor.name), " holds a NaN or an infinity"));
}

// Reads rows [begin, end) of a piece (the part of a parameter that is in one tensor of the file)
// into `staging`. The tensor is stored as [out, in]. *values becomes a view of the rows.
absl::Status ReadRows(const WeightFiles& files, const WeightPiece& piece, int64_t columns,
                      int64_t begin, int64_t end, void* staging, Tensor* values) {
  const DType dtype = *ToDType(piece.values->type);
  const int64_t row_bytes = columns * DTypeBytes(dtype);
  *values = Tensor::Dense(staging, dtype, {end - begin, columns});
  return files.Read(*piece.values, begin * row_bytes, (end - begin) * row_bytes, staging);
}

// Like ReadRows, but for a tensor that is stored transposed, as [in, out]: reads columns [begin,
// end) of the stored matrix into `staging`. *values becomes a view of them with dimensions swapped,
// that is, rows of the parameter.
absl::Status ReadColumns(const WeightFiles& files, const WeightPiece& piece, int64_t columns,
                         int64_t begin, int64_t end, void* staging, Tensor* values) {
  const DType dtype = *ToDType(piece.values->type);
  const int64_t width = end - begin, element = DTypeBytes(dtype);
  char* out = static_cast<char*>(staging);
  for (int64_t k = 0; k < columns; ++k) {
    const int64_t offset = (k * piece.rows + begin) * element;
    QT_RETURN_IF_ERROR(files.Read(*piece.values, offset, width * element, out));
    out += width * element;
    if (width == piece.rows && k == 0) {
      // The caller wants all columns of the stored matrix. Its row 0 has just been read; all later
      // rows are contiguous in the file, so load them with one read.
      const int64_t rest = (columns - 1) * width * element;
      QT_RETURN_IF_ERROR(files.Read(*piece.values, width * element, rest, out));
      break;
    }
  }
  *values = Tensor::Dense(staging, dtype, {columns, width});
  std::swap(values->dim[0], values->dim[1]);
  std::swap(values->stride[0], values->stride[1]);
  return absl::OkStatus();
}

template <typename T>
void Gather(const Tensor& values, int64_t row, float* out) {
  const T* in = values.as<T>() + row * values.stride[0];
  for (int64_t c = 0; c < values.dim[1]; ++c) out[c] = static_cast<float>(in[c * values.stride[1]]);
}

void Gather16(const Tensor& values, int64_t row, float (*to_f32)(uint16_t), float* out) {
  const uint16_t* in = values.as<uint16_t>() + row * values.stride[0];
  for (int64_t c = 0; c < values.dim[1]; ++c) out[c] = to_f32(in[c * values.stride[1]]);
}

}  // namespace

int64_t StagingBytes(const PlannedWeight& weight, int64_t rows) {
  int64_t element = 1;
  for (const WeightPiece& piece : weight.pieces) {
    element = std::max(element, StoredTypeBytes(piece.values->type));
  }
  // Layout of `staging`: the values, then the row scales (f32) at the next multiple of 64 bytes.
  return (rows * weight.columns() * element + 63) / 64 * 64 + rows * 4;
}

absl::Status VisitRows(
    const WeightFiles& files, const PlannedWeight& weight, int64_t begin, int64_t end,
    void* staging,
    absl::FunctionRef<void(int64_t row, const Tensor& values, const Tensor& scales)> visit) {
  const int64_t columns = weight.columns();
  // Linear search, because a parameter has few pieces; only cross_kv has more, two per layer.
  for (const WeightPiece& piece : weight.pieces) {
    const int64_t first = std::max(begin, piece.row), last = std::min(end, piece.row + piece.rows);
    if (first >= last) continue;
    Tensor values, scales;
    const auto read = piece.transposed ? ReadColumns : ReadRows;
    QT_RETURN_IF_ERROR(
        read(files, piece, columns, first - piece.row, last - piece.row, staging, &values));
    QT_RETURN_IF_ERROR(CheckFinite(*piece.values, values.dtype, staging, values.elements()));
    if (piece.scales != nullptr) {
      char* at = static_cast<char*>(staging) + (values.elements() + 63) / 64 * 64;
      scales = Tensor::Dense(static_cast<void*>(at), DType::kF32, {last - first});
      QT_RETURN_IF_ERROR(
          files.Read(*piece.scales, (first - piece.row) * 4, (last - first) * 4, at));
      QT_RETURN_IF_ERROR(CheckFinite(*piece.scales, DType::kF32, at, last - first));
    }
    visit(first, values, scales);
  }
  return absl::OkStatus();
}

void RowToF32(const Tensor& values, const Tensor& scales, int64_t row, float* out) {
  const int64_t columns = values.dim[1];
  switch (values.dtype) {
    case DType::kF32:
      return Gather<float>(values, row, out);
    case DType::kBF16:
      return Gather16(values, row, BF16ToF32, out);
    case DType::kF16:
      return Gather16(values, row, F16ToF32, out);
    case DType::kI32:
      return Gather<int32_t>(values, row, out);
    case DType::kI64:
      return Gather<int64_t>(values, row, out);
    case DType::kI8:
    case DType::kF8:
      // Only files written by `quintet convert` have i8 and fp8 tensors, and these are never stored
      // transposed. Their rows are therefore contiguous.
      ConvertToF32(values.Rows(row, row + 1).data, values.dtype, columns, out);
      for (int64_t c = 0; c < columns && scales.defined(); ++c) out[c] *= scales.f32()[row];
  }
}

}  // namespace quintet
