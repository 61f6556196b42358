#include "models/checkpoint/text_encoder_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/string_map.h"
#include "models/checkpoint/t5_names.h"

namespace quintet {
namespace {

constexpr char kMetadata[] = "_quantization_metadata";
constexpr char kMarker[] = ".comfy_quant";
constexpr char kTokenizer[] = "spiece_model";
constexpr int64_t kMaxMarkerBytes = 4096;
constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

// True for tensors that tensors() omits: scales and formats of other tensors, and the tokenizer.
bool IsCompanion(absl::string_view name) {
  for (const char* suffix :
       {kMarker, ".weight_scale", ".scale_weight", ".input_scale", ".scale_input"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return name == "scaled_fp8" || name == kTokenizer;
}

// True for the matrices of linear layers, given Hugging Face's name. Only these may be quantized in
// the packed format.
bool IsLinear(const StoredTensor& tensor, absl::string_view name) {
  return tensor.shape.size() == 2 && absl::EndsWith(name, ".weight") && name != "shared.weight" &&
         !absl::EndsWith(name, ".embed_tokens.weight") &&
         !absl::EndsWith(name, ".relative_attention_bias.weight");
}

// Adds the prefixes P for which the file has the tensors P + `embedding` and P + `query`.
void AddPrefixes(const WeightFiles& files, absl::string_view embedding, absl::string_view query,
                 std::set<std::string>* prefixes) {
  for (const StoredTensor& tensor : files.tensors()) {
    absl::string_view prefix = tensor.name;
    if (!absl::ConsumeSuffix(&prefix, query)) continue;
    if (files.Find(absl::StrCat(prefix, embedding)) != nullptr) prefixes->emplace(prefix);
  }
}

absl::StatusOr<std::string> FindPrefix(const WeightFiles& files, const std::string& where) {
  constexpr char kQuery[] = "encoder.block.0.layer.0.SelfAttention.q.weight";
  constexpr char kWanQuery[] = "blocks.0.attn.q.weight";
  std::set<std::string> prefixes;
  AddPrefixes(files, "shared.weight", kQuery, &prefixes);
  AddPrefixes(files, "encoder.embed_tokens.weight", kQuery, &prefixes);
  AddPrefixes(files, "token_embedding.weight", kWanQuery, &prefixes);
  if (prefixes.size() == 1) return *prefixes.begin();
  if (prefixes.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": expected one T5 encoder, got ", prefixes.size(), ", with the prefixes ",
        absl::StrJoin(prefixes, ", ", [](std::string* out, const std::string& prefix) {
          absl::StrAppend(out, "\"", Printable(prefix), "\"");
        })));
  }
  const bool clip =
      std::any_of(files.tensors().begin(), files.tensors().end(), [](const StoredTensor& tensor) {
        return absl::StrContains(tensor.name, "text_model.encoder.layers.");
      });
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": not a T5 text encoder: expected shared.weight and ", kQuery,
      " (Hugging Face), or token_embedding.weight and ", kWanQuery, " (Wan)",
      clip ? "; it holds a CLIP text encoder, which is not supported" : "",
      files.tensors().empty()
          ? "; it has no tensors"
          : absl::StrCat("; its first tensor is ", Printable(files.tensors()[0].name))));
}

// Products of a scale and the largest e4m3 value, 448, must be finite.
absl::Status CheckScales(const float* scales, int64_t count, const std::string& where) {
  constexpr float kMost = std::numeric_limits<float>::max() / 448;
  for (int64_t i = 0; i < count; ++i) {
    if (std::abs(scales[i]) <= kMost) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected finite scales up to ", kMost, ", got ", scales[i]));
  }
  return absl::OkStatus();
}

// Converts n values of a float or 8-bit type to f32.
void ToFloats(const char* raw, StoredType type, int64_t n, float* values) {
  if (type != StoredType::kF8E5M2) return ConvertToF32(raw, *ToDType(type), n, values);
  // e5m2 is the upper byte of f16.
  for (int64_t i = 0; i < n; ++i) {
    values[i] = F16ToF32(static_cast<uint16_t>(static_cast<uint8_t>(raw[i]) << 8));
  }
}

// Returns the type of the values of a quantized tensor from its declared format.
absl::StatusOr<StoredType> DeclaredType(const StoredTensor& tensor, const nlohmann::json& config,
                                        const std::string& where) {
  const auto field = [&](const char* name) {
    const auto found = config.is_object() ? config.find(name) : config.end();
    return !config.is_object() || found == config.end() ? nlohmann::json() : *found;
  };
  const nlohmann::json format = field("format"), rotated = field("convrot");
  const std::string name = format.is_string() ? format.get<std::string>() : "";
  StoredType type;
  if (name == "float8_e4m3fn") {
    type = StoredType::kF8E4M3;
  } else if (name == "float8_e5m2") {
    type = StoredType::kF8E5M2;
  } else if (name == "int8_tensorwise" && (rotated.is_null() || rotated == false)) {
    type = StoredType::kI8;
  } else {
    return absl::UnimplementedError(absl::StrCat(
        where, ": format \"", Printable(name), "\"", rotated.is_null() ? "" : " with convrot",
        " is not supported, expected float8_e4m3fn, float8_e5m2 or int8_tensorwise; "
        "use another quantization of the model"));
  }
  if (tensor.type == type || tensor.type == StoredType::kU8) return type;
  return absl::InvalidArgumentError(absl::StrCat(where, ": format \"", Printable(name),
                                                 "\" does not fit ",
                                                 Describe(tensor.type, tensor.shape)));
}

}  // namespace

struct TextEncoderFile::Layers {
  StringMap<nlohmann::json> configs;
};

absl::StatusOr<TextEncoderFile> TextEncoderFile::Open(const std::string& path,
                                                      bool follow_symlinks) {
  TextEncoderFile file;
  file.name_ = Printable(path.substr(path.rfind('/') + 1));
  QT_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::OpenFile(path, follow_symlinks));
  file.file_ = std::make_unique<const SafetensorsReader>(std::move(reader));
  QT_ASSIGN_OR_RETURN(const std::string prefix, FindPrefix(*file.file_, file.name_));
  QT_RETURN_IF_ERROR(file.AddTensors(prefix));
  const auto twice = file.IndexNames();
  if (!twice) return file;
  return absl::InvalidArgumentError(absl::StrCat(file.name_, ": two tensors are named ",
                                                 Printable(twice->first->name),
                                                 " in Hugging Face's T5"));
}

// Returns the quantization formats of matrices, which the metadata and the tensors *.comfy_quant
// declare.
absl::StatusOr<TextEncoderFile::Layers> TextEncoderFile::ReadLayers() const {
  Layers layers;
  if (const auto entry = file_->metadata().find(kMetadata); entry != file_->metadata().end()) {
    const std::string where = absl::StrCat(name_, ": ", kMetadata);
    QT_ASSIGN_OR_RETURN(const nlohmann::json metadata, ParseJson(entry->second, where, 8));
    const auto found = metadata.is_object() ? metadata.find("layers") : metadata.end();
    if (!metadata.is_object() || found == metadata.end() || !found->is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": expected an object \"layers\""));
    }
    for (const auto& [layer, config] : found->items()) layers.configs[layer] = config;
  }
  for (const StoredTensor& tensor : file_->tensors()) {
    absl::string_view layer = tensor.name;
    if (!absl::ConsumeSuffix(&layer, kMarker)) continue;
    const std::string where = absl::StrCat(name_, ": tensor ", Printable(tensor.name));
    if (tensor.type != StoredType::kU8 || tensor.bytes > kMaxMarkerBytes) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": expected at most ", kMaxMarkerBytes,
                                                     " bytes of JSON as U8, got ",
                                                     Describe(tensor.type, tensor.shape)));
    }
    std::string text(static_cast<size_t>(tensor.bytes), '\0');
    QT_RETURN_IF_ERROR(file_->Read(tensor, 0, tensor.bytes, text.data()));
    QT_ASSIGN_OR_RETURN(layers.configs[std::string(layer)], ParseJson(text, where, 8));
  }
  return layers;
}

absl::Status TextEncoderFile::AddTensors(const std::string& prefix) {
  QT_ASSIGN_OR_RETURN(const Layers layers, ReadLayers());
  for (const StoredTensor& tensor : file_->tensors()) {
    absl::string_view name = tensor.name;
    if (!absl::ConsumePrefix(&name, prefix) || IsCompanion(name)) continue;
    QT_RETURN_IF_ERROR(AddTensor(tensor, HuggingFaceT5Name({name.data(), name.size()}), layers));
  }
  return absl::OkStatus();
}

absl::Status TextEncoderFile::AddTensor(const StoredTensor& tensor, const std::string& name,
                                        const Layers& layers) {
  const std::string where = absl::StrCat(name_, ": tensor ", Printable(tensor.name));
  Origin origin{.values = &tensor, .type = tensor.type};
  const absl::string_view layer = absl::StripSuffix(tensor.name, ".weight");
  const auto declared = layers.configs.find(std::string_view(layer.data(), layer.size()));
  if (declared != layers.configs.end()) {
    QT_ASSIGN_OR_RETURN(origin.type, DeclaredType(tensor, declared->second, where));
  }
  for (const char* other : {".weight_scale_2", ".pre_quant_scale"}) {
    if (file_->Find(absl::StrCat(layer, other)) == nullptr) continue;
    return absl::UnimplementedError(absl::StrCat(where, ": scales in ", other,
                                                 " are not supported; use another quantization of "
                                                 "the model"));
  }
  QT_RETURN_IF_ERROR(FindScale(tensor, &origin));
  const bool scaled = origin.rows != nullptr || origin.scale != 1.0F;
  const bool int8 = origin.type == StoredType::kI8 && declared != layers.configs.end();
  if ((origin.type == StoredType::kF8E4M3 || int8) && IsLinear(tensor, name)) {
    Add(tensor, name, origin.type, origin);
    AddScales(tensor, name, origin);
    return absl::OkStatus();
  }
  StoredType type = origin.type;
  if (origin.type == StoredType::kF8E4M3) type = StoredType::kBF16;
  if (origin.type == StoredType::kF8E5M2) type = StoredType::kF16;
  if (scaled && (IsFloat(type) || int8)) type = StoredType::kF32;
  Add(tensor, name, type, origin);
  return absl::OkStatus();
}

// Finds the scale of a tensor. Sets origin->scale if the tensor has one scale for all values, or
// origin->rows if it has one scale per row.
absl::Status TextEncoderFile::FindScale(const StoredTensor& tensor, Origin* origin) const {
  const absl::string_view layer = absl::StripSuffix(tensor.name, ".weight");
  if (layer.size() == tensor.name.size()) return absl::OkStatus();
  const StoredTensor* scale = file_->Find(absl::StrCat(layer, ".weight_scale"));
  if (scale == nullptr) scale = file_->Find(absl::StrCat(layer, ".scale_weight"));
  if (scale == nullptr) return absl::OkStatus();
  int64_t count = 1;
  for (const int64_t n : scale->shape) count *= n;  // fits: the reader has checked it
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  const bool column =
      scale->shape.size() <= 1 || (scale->shape.size() == 2 && scale->shape[1] == 1);
  if (!IsFloat(scale->type) || !column || (count != 1 && count != rows)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name_, ": tensor ", Printable(scale->name), " is ", Describe(scale->type, scale->shape),
        ", expected one float or ", rows, ", one for each row of ", Printable(tensor.name)));
  }
  if (count == rows && count != 1) {
    origin->rows = scale;
    return absl::OkStatus();
  }
  char raw[sizeof(float)];
  QT_RETURN_IF_ERROR(file_->Read(*scale, 0, scale->bytes, raw));
  ToFloats(raw, scale->type, 1, &origin->scale);
  return CheckScales(&origin->scale, 1, absl::StrCat(name_, ": tensor ", Printable(scale->name)));
}

void TextEncoderFile::Add(const StoredTensor& tensor, const std::string& name, StoredType type,
                          const Origin& origin) {
  StoredTensor added = tensor;
  added.name = name;
  added.type = type;
  added.bytes = tensor.bytes / StoredTypeBytes(tensor.type) * StoredTypeBytes(type);
  if (type != origin.type) added.encoding = StoredTypeName(origin.type);
  tensors_.push_back(std::move(added));
  origins_.push_back(origin);
}

void TextEncoderFile::AddScales(const StoredTensor& tensor, const std::string& name,
                                const Origin& origin) {
  StoredTensor scales;
  scales.name = absl::StrCat(absl::StripSuffix(name, ".weight"), ".scales");
  scales.shape = {tensor.shape[0]};
  scales.bytes = tensor.shape[0] * StoredTypeBytes(scales.type);
  scales.offset_bytes = origin.rows == nullptr ? tensor.offset_bytes : origin.rows->offset_bytes;
  tensors_.push_back(std::move(scales));
  origins_.push_back({.scale = origin.scale, .rows = origin.rows});
}

// Sets `scales` to the scales of rows [begin, begin + count).
absl::Status TextEncoderFile::ReadScales(const Origin& origin, int64_t begin, int64_t count,
                                         float* scales) const {
  std::fill_n(scales, count, origin.scale);
  if (origin.rows == nullptr) return absl::OkStatus();
  const int64_t bytes = StoredTypeBytes(origin.rows->type);
  std::vector<char> raw(static_cast<size_t>(count * bytes));
  QT_RETURN_IF_ERROR(file_->Read(*origin.rows, begin * bytes, count * bytes, raw.data()));
  ToFloats(raw.data(), origin.rows->type, count, scales);
  return CheckScales(scales, count, absl::StrCat(name_, ": tensor ", Printable(origin.rows->name)));
}

// Reads values [begin, begin + count) of `tensor` from the file (origin.values), multiplies them by
// their scale, and stores them in `destination` with the type tensor.type.
absl::Status TextEncoderFile::Widen(const Origin& origin, const StoredTensor& tensor, int64_t begin,
                                    int64_t count, void* destination) const {
  constexpr int64_t kPart = 16384;
  int64_t columns = 1;  // values per row
  for (size_t i = 1; i < tensor.shape.size(); ++i) columns *= tensor.shape[i];
  const int64_t bytes = StoredTypeBytes(origin.type);
  const DType type = *ToDType(tensor.type);
  char* out = static_cast<char*>(destination);
  std::vector<char> raw;
  std::vector<float> values, scales;
  for (int64_t at = begin; at < begin + count;) {
    const int64_t n = std::min(kPart, begin + count - at);
    raw.resize(static_cast<size_t>(n * bytes));
    values.resize(static_cast<size_t>(n));
    QT_RETURN_IF_ERROR(file_->Read(*origin.values, at * bytes, n * bytes, raw.data()));
    ToFloats(raw.data(), origin.type, n, values.data());
    if (origin.rows != nullptr || origin.scale != 1.0F) {
      const int64_t first = at / columns, rows = (at + n - 1) / columns - first + 1;
      scales.resize(static_cast<size_t>(rows));
      QT_RETURN_IF_ERROR(ReadScales(origin, first, rows, scales.data()));
      for (int64_t i = 0; i < n; ++i) values[i] *= scales[(at + i) / columns - first];
    }
    ConvertFromF32(values.data(), n, type, out);
    out += n * DTypeBytes(type);
    at += n;
  }
  return absl::OkStatus();
}

absl::Status TextEncoderFile::Read(const StoredTensor& tensor, int64_t begin_bytes, int64_t bytes,
                                   void* destination) const {
  QT_CHECK(begin_bytes >= 0 && bytes >= 0 && begin_bytes <= tensor.bytes - bytes);
  const auto index = static_cast<size_t>(&tensor - tensors().data());
  QT_CHECK_LT(index, tensors().size());
  const Origin& origin = origins_[index];
  const int64_t size = StoredTypeBytes(tensor.type);
  QT_CHECK(begin_bytes % size == 0 && bytes % size == 0);
  if (origin.values == nullptr) {
    return ReadScales(origin, begin_bytes / size, bytes / size, static_cast<float*>(destination));
  }
  // Values that stay quantized are not scaled here: their scales are a tensor of their own.
  const bool scaled = IsFloat(tensor.type) && (origin.rows != nullptr || origin.scale != 1.0F);
  if (tensor.type == origin.type && !scaled) {
    return file_->Read(*origin.values, begin_bytes, bytes, destination);
  }
  return Widen(origin, tensor, begin_bytes / size, bytes / size, destination);
}

absl::Status TextEncoderFile::ReadFiles(
    absl::FunctionRef<bool(const void* data, int64_t bytes)> take) const {
  return file_->ReadFiles(take);
}

absl::StatusOr<std::string> TextEncoderFile::SentencePieceModel() const {
  for (const StoredTensor& tensor : file_->tensors()) {
    if (!absl::EndsWith(tensor.name, kTokenizer)) continue;
    if (tensor.type != StoredType::kU8 || tensor.bytes > kMaxTokenizerBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          name_, ": tensor ", Printable(tensor.name), " is ", Describe(tensor.type, tensor.shape),
          ", expected at most ", kMaxTokenizerBytes, " values of type U8"));
    }
    std::string model(static_cast<size_t>(tensor.bytes), '\0');
    QT_RETURN_IF_ERROR(file_->Read(tensor, 0, tensor.bytes, model.data()));
    return model;
  }
  return absl::NotFoundError(absl::StrCat(
      name_, ": no tensor ", kTokenizer,
      ": the file has no tokenizer; set --tokenizer to a directory or a file that has one"));
}

}  // namespace quintet
