#include "models/checkpoint/weight_files.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/gguf.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/text_encoder_file.h"
#include "nlohmann/json.hpp"

namespace quintet {
namespace {

struct TypeRow {
  const char* name;
  int64_t bytes;
};
// Name and bytes per value of each StoredType, in the order of the enum.
constexpr TypeRow kTypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                              {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                              {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};

template <typename Reader>
absl::StatusOr<std::unique_ptr<const WeightFiles>> Own(absl::StatusOr<Reader> reader) {
  QT_RETURN_IF_ERROR(reader.status());
  return std::make_unique<const Reader>(*std::move(reader));
}

}  // namespace

const char* StoredTypeName(StoredType type) { return kTypes[static_cast<int>(type)].name; }
int64_t StoredTypeBytes(StoredType type) { return kTypes[static_cast<int>(type)].bytes; }

std::optional<DType> ToDType(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return DType::kF32;
    case StoredType::kBF16:
      return DType::kBF16;
    case StoredType::kF16:
      return DType::kF16;
    case StoredType::kI8:
      return DType::kI8;
    case StoredType::kF8E4M3:
      return DType::kF8;
    case StoredType::kI32:
      return DType::kI32;
    case StoredType::kI64:
      return DType::kI64;
    default:
      return std::nullopt;
  }
}

StoredType ToStoredType(DType type) {
  switch (type) {
    case DType::kF32:
      return StoredType::kF32;
    case DType::kBF16:
      return StoredType::kBF16;
    case DType::kF16:
      return StoredType::kF16;
    case DType::kI8:
      return StoredType::kI8;
    case DType::kF8:
      return StoredType::kF8E4M3;
    case DType::kI32:
      return StoredType::kI32;
    case DType::kI64:
      return StoredType::kI64;
  }
  return StoredType::kF32;
}

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

std::string Describe(StoredType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(StoredTypeName(type), " [", absl::StrJoin(shape, ", "), "]");
}

std::string Printable(std::string_view name) {
  constexpr size_t kLongest = 200;
  const absl::string_view cut(name.data(), std::min(name.size(), kLongest));
  return absl::StrCat(absl::CHexEscape(cut), name.size() > kLongest ? "..." : "");
}

absl::StatusOr<std::unique_ptr<const WeightFiles>> WeightFiles::Open(const std::string& model,
                                                                     bool follow_symlinks) {
  switch (ModelFormatOf(model)) {
    case ModelFormat::kDirectory:
      break;
    case ModelFormat::kGguf:
      return Own(GgufReader::Open(model, follow_symlinks));
    case ModelFormat::kTextEncoderFile:
      return Own(TextEncoderFile::Open(model, follow_symlinks));
  }
  return Own(SafetensorsReader::Open(model, follow_symlinks));
}

const StoredTensor* WeightFiles::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return found == by_name_.end() || tensors_[*found].name != name ? nullptr : &tensors_[*found];
}

nlohmann::json WeightFiles::ConfigFields() const { return nlohmann::json::object(); }

std::optional<std::pair<const StoredTensor*, const StoredTensor*>> WeightFiles::IndexNames() {
  by_name_.resize(tensors_.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(),
            [this](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const StoredTensor &a = tensors_[by_name_[i - 1]], &b = tensors_[by_name_[i]];
    if (a.name == b.name) return std::pair(&a, &b);
  }
  return std::nullopt;
}

}  // namespace quintet
