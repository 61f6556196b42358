#include "models/convert/weights.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quintet {

absl::StatusOr<WeightsWriter> WeightsWriter::Create(
    const std::string& path, const std::vector<TensorSpec>& specs,
    std::function<bool(int64_t, int64_t)> progress) {
  // Hugging Face's loaders require the metadata entry "format".
  QT_ASSIGN_OR_RETURN(SafetensorsWriter file,
                      SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));
  WeightsWriter writer(std::move(file));
  // SafetensorsWriter::Create has already written the file's header, so hash the header first.
  QT_RETURN_IF_ERROR(HashFile(path, &writer.hash_));
  writer.progress_ = std::move(progress);
  writer.result_.tensors = static_cast<int64_t>(specs.size());
  for (const TensorSpec& spec : specs) {
    int64_t bytes = StoredTypeBytes(spec.type);
    for (int64_t d : spec.shape) bytes *= d;  // overflow was checked by SafetensorsWriter
    writer.total_bytes_ += bytes;
  }
  return writer;
}

absl::Status WeightsWriter::Append(const void* data, int64_t bytes) {
  QT_RETURN_IF_ERROR(file_.Append(data, bytes));
  hash_.Update(data, static_cast<size_t>(bytes));
  result_.bytes += bytes;
  if (progress_ && !progress_(result_.bytes, total_bytes_)) {
    return absl::CancelledError("conversion stopped");
  }
  return absl::OkStatus();
}

absl::StatusOr<ConvertResult> WeightsWriter::Finish() {
  QT_RETURN_IF_ERROR(file_.Finish());
  result_.weights_sha256 = hash_.Finish();
  return result_;
}

absl::Status Encode(const float* values, int64_t n, DType type, const std::string& tensor,
                    void* encoded) {
  // 65520 is the smallest number that f16 rounds up to infinity: it is halfway between 65504, the
  // largest f16 value, and 65536.
  const float limit = type == DType::kF16 ? 65520.0f : std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    if (std::abs(values[i]) < limit) continue;
    if (!std::isfinite(values[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Printable(tensor), " holds a NaN or an infinity"));
    }
    return absl::InvalidArgumentError(absl::StrCat("tensor ", Printable(tensor), ": ", values[i],
                                                   " does not fit f16; choose bf16 or f32"));
  }
  ConvertFromF32(values, n, type, encoded);
  return absl::OkStatus();
}

}  // namespace quintet
