#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/convert/weights.h"
#include "models/weights/fat5_names.h"
#include "models/weights/table.h"
#include "models/weights/weights_families.h"

namespace quintet {
namespace {

constexpr int64_t kBlockElements = int64_t{1} << 20;

struct RenamedTensor {
  std::string name;
  const StoredTensor* source = nullptr;
  float factor = 1.0f;
  DType type = DType::kF32;
};

int64_t Elements(const StoredTensor& tensor) { return tensor.bytes / StoredTypeBytes(tensor.type); }

bool IsPowerOfTwo(float x) {
  int exponent;
  return std::frexp(x, &exponent) == 0.5f;
}

// Finds the token embedding, which files store under one of three names. Null if there is none.
const StoredTensor* FindEmbedding(const WeightFiles& files) {
  for (const char* prefix : {"", "transformer."}) {
    for (const char* name :
         {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
      if (const StoredTensor* found = files.Find(absl::StrCat(prefix, name))) return found;
    }
  }
  return nullptr;
}

float InverseSqrt(int64_t d_model) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(d_model)));
}

// Reads elements [begin, begin + n) of the source tensor tensor.source, converts them to f32 and
// multiplies them by tensor.factor. `raw` is scratch memory.
absl::Status ReadElements(const WeightFiles& files, const RenamedTensor& tensor, int64_t begin,
                          int64_t n, std::vector<char>* raw, float* out) {
  const int64_t width = StoredTypeBytes(tensor.source->type);
  raw->resize(n * width);
  QT_RETURN_IF_ERROR(files.Read(*tensor.source, begin * width, n * width, raw->data()));
  ConvertToF32(raw->data(), *ToDType(tensor.source->type), n, out);
  if (tensor.factor != 1.0f) {
    for (int64_t i = 0; i < n; ++i) out[i] *= tensor.factor;
  }
  return absl::OkStatus();
}

// True if tensor a, multiplied by its factor and rounded to the dtype of b, equals tensor b.
absl::StatusOr<bool> SameValues(const WeightFiles& files, const RenamedTensor& a,
                                const RenamedTensor& b) {
  const int64_t total = Elements(*a.source);
  if (a.source->shape != b.source->shape) return false;
  const DType type = *ToDType(b.source->type);
  std::vector<char> raw, rounded;
  std::vector<float> x(kBlockElements), y(kBlockElements);
  for (int64_t begin = 0; begin < total; begin += kBlockElements) {
    const int64_t n = std::min(kBlockElements, total - begin);
    for (auto [tensor, out] : {std::pair(&a, x.data()), std::pair(&b, y.data())}) {
      QT_RETURN_IF_ERROR(ReadElements(files, *tensor, begin, n, &raw, out));
    }
    rounded.resize(n * DTypeBytes(type));
    ConvertFromF32(x.data(), n, type, rounded.data());
    ConvertToF32(rounded.data(), type, n, x.data());
    if (std::memcmp(x.data(), y.data(), n * sizeof(float)) != 0) return false;
  }
  return true;
}

DType TargetType(const RenamedTensor& tensor, std::optional<DType> wanted) {
  const DType source = *ToDType(tensor.source->type);
  if (wanted) return *wanted;
  return tensor.factor == 1.0f || IsPowerOfTwo(tensor.factor) ? source : DType::kF32;
}

absl::Status CheckFloat(const StoredTensor& tensor) {
  const std::optional<DType> type = ToDType(tensor.type);
  if (type == DType::kF32 || type == DType::kBF16 || type == DType::kF16) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Printable(tensor.name),
                                                 ": expected F32, BF16 or F16, got ",
                                                 StoredTypeName(tensor.type)));
}

// True for tensors that the loader ignores. For instance, the decoder's tensors are ignored if
// config.json names an encoder-only model class.
bool IsUnread(const ModelConfig& config, const StoredTensor& tensor) {
  return IsIgnoredT5Tensor(config, std::string(absl::StripPrefix(tensor.name, "transformer.")));
}

// Lists the tensors of the FAT5 model to be written. Each entry has its FAT5 name and the tensor of
// the T5 files that contains its values.
absl::StatusOr<std::vector<RenamedTensor>> Fat5Tensors(const WeightFiles& files,
                                                       const ModelConfig& config,
                                                       const StoredTensor* embedding) {
  std::vector<RenamedTensor> result;
  const float head_factor =
      config.scale_logits.value_or(false) ? InverseSqrt(config.d_model) : 1.0f;
  bool has_head = false;
  for (const StoredTensor& tensor : files.tensors()) {
    if (IsUnread(config, tensor)) continue;
    QT_ASSIGN_OR_RETURN(std::string name, Fat5NameOfT5(tensor.name));
    if (name.empty() || name == "shared.weight") continue;
    QT_RETURN_IF_ERROR(CheckFloat(tensor));
    const bool is_head = name == "lm_head.weight";
    has_head |= is_head;
    result.push_back({name, &tensor, is_head ? head_factor : 1.0f});
  }
  result.push_back({"shared.weight", embedding});
  if (config.head == Head::kLanguageModel && !has_head) {
    result.push_back({"lm_head.weight", embedding, head_factor});
  }
  return result;
}

// Lists the tensors of the T5 model to be written. Each entry has its T5 name and the tensor of the
// FAT5 files that contains its values. If lm_head equals the embedding times d_model^-0.5, sets
// *tied and omits lm_head.
absl::StatusOr<std::vector<RenamedTensor>> T5Tensors(const WeightFiles& files,
                                                     const ModelConfig& config,
                                                     const StoredTensor* embedding, bool* tied) {
  std::vector<RenamedTensor> result;
  const std::string prefix = config.head == Head::kTokenClassification ? "transformer." : "";
  result.push_back({absl::StrCat(prefix, "shared.weight"), embedding});
  for (const StoredTensor& tensor : files.tensors()) {
    if (IsUnread(config, tensor)) continue;
    QT_ASSIGN_OR_RETURN(std::string name, T5NameOfFat5(tensor.name, config.head));
    if (name.empty() || absl::EndsWith(name, "shared.weight")) continue;
    QT_RETURN_IF_ERROR(CheckFloat(tensor));
    if (name == "lm_head.weight") {
      QT_ASSIGN_OR_RETURN(bool same, SameValues(files, {"", embedding, InverseSqrt(config.d_model)},
                                                {"", &tensor}));
      if ((*tied = same)) continue;
    }
    const bool query = absl::EndsWith(name, "Attention.q.weight");
    result.push_back({name, &tensor, query ? config.attention_scale : 1.0f});
  }
  return result;
}

absl::Status WriteTensor(const WeightFiles& files, const RenamedTensor& tensor,
                         WeightsWriter* writer) {
  const int64_t total = Elements(*tensor.source);
  std::vector<char> raw, encoded;
  std::vector<float> floats(std::min(total, kBlockElements));
  for (int64_t begin = 0; begin < total; begin += kBlockElements) {
    const int64_t n = std::min(kBlockElements, total - begin);
    QT_RETURN_IF_ERROR(ReadElements(files, tensor, begin, n, &raw, floats.data()));
    encoded.resize(n * DTypeBytes(tensor.type));
    QT_RETURN_IF_ERROR(Encode(floats.data(), n, tensor.type, tensor.name, encoded.data()));
    QT_RETURN_IF_ERROR(writer->Append(encoded.data(), static_cast<int64_t>(encoded.size())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RenamedWeights> WriteRenamedWeights(const WeightFiles& files, ModelConfig* config,
                                                   const ConvertOptions& options,
                                                   const std::string& path) {
  // Call PlanWeights, because it checks names, shapes and dtypes as the loader does, and sets
  // config->scale_logits. Its other output, `destinations`, is not used.
  WeightDestinations destinations;
  QT_RETURN_IF_ERROR(PlanWeights(files, config, &destinations).status());
  RenamedWeights result;
  const StoredTensor* embedding = FindEmbedding(files);
  if (embedding == nullptr) return absl::InvalidArgumentError("tensor shared.weight: missing");
  QT_RETURN_IF_ERROR(CheckFloat(*embedding));
  QT_ASSIGN_OR_RETURN(std::vector<RenamedTensor> tensors,
                      options.form == ConvertForm::kFat5
                          ? Fat5Tensors(files, *config, embedding)
                          : T5Tensors(files, *config, embedding, &result.tied));
  std::vector<TensorSpec> specs;
  // Sort by name, so that a sharded source and a single file give the same bytes.
  std::sort(tensors.begin(), tensors.end(),
            [](const RenamedTensor& a, const RenamedTensor& b) { return a.name < b.name; });
  for (RenamedTensor& tensor : tensors) {
    tensor.type = TargetType(tensor, options.dtype);
    specs.push_back({tensor.name, ToStoredType(tensor.type), tensor.source->shape});
  }
  QT_ASSIGN_OR_RETURN(WeightsWriter writer, WeightsWriter::Create(path, specs, options.progress));
  for (const RenamedTensor& tensor : tensors) {
    QT_RETURN_IF_ERROR(WriteTensor(files, tensor, &writer));
  }
  QT_ASSIGN_OR_RETURN(result.written, writer.Finish());
  result.written.dtype = options.dtype.value_or(*ToDType(embedding->type));
  return result;
}

}  // namespace quintet
