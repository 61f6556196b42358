#include "models/config/sentence_modules.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

using nlohmann::json;

constexpr int64_t kMaxModulesBytes = int64_t{16} << 20;
constexpr int64_t kMaxFeatures = 1 << 16;
constexpr size_t kMaxModules = 32;
constexpr char kModulesFile[] = "modules.json";
constexpr char kOwnFile[] = "config_sentence_transformers.json";

// A JSON object that was read from a file, with type-checked access to its fields.
class Fields {
 public:
  // Reads a JSON file. If it does not exist, the result is an empty object.
  static absl::StatusOr<Fields> Read(const std::string& directory, const std::string& file) {
    Fields fields;
    fields.where_ = file;
    absl::StatusOr<json> object =
        ReadJsonFile(absl::StrCat(directory, "/", file), kMaxModulesBytes);
    if (absl::IsNotFound(object.status())) return fields;
    QT_RETURN_IF_ERROR(object.status());
    if (!object->is_object()) return fields.Wrong("", "an object", *object);
    fields.object_ = *std::move(object);
    return fields;
  }

  const json* Find(const std::string& field) const {
    const auto found = object_.find(field);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& object() const { return object_; }

  absl::StatusOr<bool> Bool(const std::string& field, bool absent) const {
    const json* const value = Find(field);
    if (value == nullptr) return absent;
    return value->is_boolean() ? absl::StatusOr<bool>(value->get<bool>())
                               : Wrong(field, "true or false", *value);
  }
  absl::StatusOr<std::string> String(const std::string& field, const std::string& absent) const {
    const json* const value = Find(field);
    if (value == nullptr) return absent;
    return value->is_string() ? absl::StatusOr<std::string>(value->get<std::string>())
                              : Wrong(field, "a string", *value);
  }
  // Returns the value of a field, which must be a whole number from 1 to `most`. If the object does
  // not have the field, returns the argument `absent`.
  absl::StatusOr<int64_t> Whole(const std::string& field, int64_t most, int64_t absent) const {
    const json* const value = Find(field);
    if (value == nullptr) return absent;
    const std::string expected = absl::StrCat("a whole number from 1 to ", most);
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > static_cast<uint64_t>(most)) {
      return Wrong(field, expected, *value);
    }
    return static_cast<int64_t>(value->get<uint64_t>());
  }

  absl::Status Wrong(const std::string& field, const std::string& expected, const json& got) const {
    return absl::InvalidArgumentError(absl::StrCat(where_, field.empty() ? "" : ": ", field,
                                                   ": expected ", expected, ", got ", Shown(got)));
  }
  absl::Status Unsupported(const std::string& field, const std::string& text) const {
    return absl::UnimplementedError(absl::StrCat(where_, ": ", field, ": ", text));
  }

 private:
  static std::string Shown(const json& value) {
    return value.is_number() || value.is_boolean()
               ? value.dump()
               : (value.is_string() ? Printable(value.get_ref<const std::string&>())
                                    : std::string(value.type_name()));
  }

  std::string where_;
  json object_ = json::object();
};

struct ModuleEntry {
  std::string kind;  // the class, without the Python module that it is in
  std::string folder;
};

// Releases of sentence-transformers put the same class into different Python modules. In old ones
// it is sentence_transformers.models.Dense, in new ones
// sentence_transformers.base.modules.dense.Dense.
absl::StatusOr<std::string> ModuleKind(const std::string& type) {
  const std::string kind = type.substr(type.rfind('.') + 1);
  if (absl::StartsWith(type, "sentence_transformers.")) {
    for (const char* known : {"Transformer", "Pooling", "Dense", "Normalize"}) {
      if (kind == known) return kind;
    }
  }
  return absl::UnimplementedError(absl::StrCat(
      kModulesFile, ": type ", Printable(type),
      " is not supported; expected the modules Transformer, Pooling, Dense and Normalize of "
      "sentence_transformers. To embed without modules, remove ",
      kModulesFile));
}

absl::StatusOr<ModuleEntry> ReadEntry(const json& value, size_t index) {
  const auto text = [&](const char* field) {
    const auto found = value.is_object() ? value.find(field) : value.end();
    return value.is_object() && found != value.end() && found->is_string()
               ? found->get<std::string>()
               : std::string("\n");
  };
  const std::string type = text("type"), folder = text("path");
  if (type == "\n" || folder == "\n") {
    return absl::InvalidArgumentError(absl::StrCat(
        kModulesFile, "[", index, "]: expected an object with the strings type and path"));
  }
  ModuleEntry entry;
  QT_ASSIGN_OR_RETURN(entry.kind, ModuleKind(type));
  entry.folder = folder;
  if (!folder.empty() && !IsPlainFileName(folder)) {
    return absl::InvalidArgumentError(absl::StrCat(kModulesFile, "[", index,
                                                   "]: path: expected the name of a "
                                                   "sub-directory, got ",
                                                   Printable(folder)));
  }
  return entry;
}

// Returns the entries of modules.json; an empty list if the directory has no such file.
absl::StatusOr<std::vector<ModuleEntry>> ReadEntries(const std::string& directory) {
  std::vector<ModuleEntry> entries;
  const absl::StatusOr<json> list =
      ReadJsonFile(absl::StrCat(directory, "/", kModulesFile), kMaxModulesBytes);
  if (absl::IsNotFound(list.status())) return entries;
  QT_RETURN_IF_ERROR(list.status());
  if (!list->is_array() || list->empty() || list->size() > kMaxModules) {
    return absl::InvalidArgumentError(
        absl::StrCat(kModulesFile, ": expected a list of 1 to ", kMaxModules, " modules"));
  }
  for (size_t i = 0; i < list->size(); ++i) {
    QT_ASSIGN_OR_RETURN(ModuleEntry entry, ReadEntry((*list)[i], i));
    const bool expected_first = entry.kind == "Transformer";
    const bool expected_second = entry.kind == "Pooling";
    if (expected_first != (i == 0) || expected_second != (i == 1)) {
      return absl::UnimplementedError(
          absl::StrCat(kModulesFile, "[", i,
                       "]: expected Transformer, then Pooling, then Dense and Normalize; "
                       "got ",
                       entry.kind));
    }
    if (expected_first && !entry.folder.empty()) {
      return absl::UnimplementedError(
          absl::StrCat(kModulesFile, "[0]: path: expected \"\", got ", Printable(entry.folder),
                       "; save the model again with a newer sentence-transformers"));
    }
    if (entry.folder.empty() && (entry.kind == "Pooling" || entry.kind == "Dense")) {
      return absl::InvalidArgumentError(absl::StrCat(
          kModulesFile, "[", i, "]: path: expected the name of a sub-directory, got \"\""));
    }
    entries.push_back(std::move(entry));
  }
  if (entries.size() < 2) {
    return absl::UnimplementedError(absl::StrCat(kModulesFile, ": expected a Pooling module"));
  }
  return entries;
}

struct PoolingName {
  const char* name;
  const char* old_field;  // a boolean field of older releases
  Pooling pooling;
};
// Names of the pooling modes. In files of older sentence-transformers releases each mode has a
// boolean field, and the results of all modes whose field is true are concatenated in the order of
// this array.
constexpr PoolingName kPoolings[] = {
    {"cls", "pooling_mode_cls_token", Pooling::kFirst},
    {"max", "pooling_mode_max_tokens", Pooling::kMax},
    {"mean", "pooling_mode_mean_tokens", Pooling::kMean},
    {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::kMeanSqrtLen},
    {"weightedmean", "pooling_mode_weightedmean_tokens", Pooling::kWeightedMean},
    {"lasttoken", "pooling_mode_lasttoken", Pooling::kLast},
};

absl::StatusOr<std::vector<Pooling>> ReadPoolings(const Fields& fields) {
  std::vector<Pooling> poolings;
  const json* const mode = fields.Find("pooling_mode");
  if (mode == nullptr) {
    for (const PoolingName& known : kPoolings) {
      QT_ASSIGN_OR_RETURN(const bool on, fields.Bool(known.old_field, false));
      if (on) poolings.push_back(known.pooling);
    }
    if (poolings.empty()) poolings.push_back(Pooling::kMean);
    return poolings;
  }
  const json names = mode->is_array() ? *mode : json::array({*mode});
  for (const json& name : names) {
    const auto* known = std::find_if(std::begin(kPoolings), std::end(kPoolings),
                                     [&](const PoolingName& p) { return name == p.name; });
    if (known == std::end(kPoolings)) {
      return fields.Wrong("pooling_mode",
                          "cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken", name);
    }
    poolings.push_back(known->pooling);
  }
  if (poolings.empty() || poolings.size() > std::size(kPoolings)) {
    return fields.Wrong("pooling_mode", "1 to 6 modes", *mode);
  }
  return poolings;
}

absl::Status ReadPooling(const std::string& directory, const std::string& folder, int64_t d_model,
                         SentenceModules* modules) {
  QT_ASSIGN_OR_RETURN(const Fields fields,
                      Fields::Read(directory, absl::StrCat(folder, "/config.json")));
  QT_ASSIGN_OR_RETURN(modules->poolings, ReadPoolings(fields));
  QT_ASSIGN_OR_RETURN(modules->include_prompt, fields.Bool("include_prompt", true));
  const bool old_name = fields.Find("embedding_dimension") == nullptr;
  const char* const name = old_name ? "word_embedding_dimension" : "embedding_dimension";
  QT_ASSIGN_OR_RETURN(const int64_t width, fields.Whole(name, kMaxFeatures, d_model));
  if (width != d_model) {
    return fields.Wrong(name, absl::StrCat("the model's d_model ", d_model), width);
  }
  modules->columns = d_model * static_cast<int64_t>(modules->poolings.size());
  return absl::OkStatus();
}

// Returns an error unless the module reads the pooled embedding and writes its result back to it
// (module_input_name and module_output_name are "sentence_embedding" or absent).
absl::Status CheckInput(const Fields& fields) {
  for (const char* field : {"module_input_name", "module_output_name"}) {
    QT_ASSIGN_OR_RETURN(const std::string name, fields.String(field, "sentence_embedding"));
    if (name == "sentence_embedding") continue;
    return fields.Unsupported(field,
                              absl::StrCat("expected sentence_embedding, got ", Printable(name)));
  }
  return absl::OkStatus();
}

absl::StatusOr<SentenceLayer::Activation> ReadActivation(const Fields& fields) {
  using A = SentenceLayer::Activation;
  QT_ASSIGN_OR_RETURN(const std::string path,
                      fields.String("activation_function", "torch.nn.modules.activation.Tanh"));
  constexpr std::pair<const char*, A> kKnown[] = {
      {"Identity", A::kIdentity}, {"Tanh", A::kTanh}, {"ReLU", A::kRelu},
      {"GELU", A::kGelu},         {"SiLU", A::kSilu}, {"Sigmoid", A::kSigmoid}};
  const std::string name = path.substr(path.rfind('.') + 1);
  for (const auto& [known, activation] : kKnown) {
    if (name == known && absl::StartsWith(path, "torch.nn.")) return activation;
  }
  return fields.Unsupported(
      "activation_function",
      absl::StrCat("expected Identity, Tanh, ReLU, GELU, SiLU or Sigmoid of torch.nn, got ",
                   Printable(path)));
}

// Reads an F32, BF16 or F16 tensor, which must have the given shape, and converts it to f32.
absl::StatusOr<std::vector<float>> ReadTensor(const SafetensorsReader& files,
                                              const std::string& where, const std::string& name,
                                              const std::vector<int64_t>& shape) {
  const StoredTensor* const tensor = files.Find(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": no tensor ", name));
  }
  const std::optional<DType> type = ToDType(tensor->type);
  const bool real = type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
  if (!real || tensor->shape != shape) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": tensor ", name, ": expected F32, BF16 or F16 [",
                     absl::StrJoin(shape, ", "), "], got ", Describe(tensor->type, tensor->shape)));
  }
  std::vector<char> bytes(static_cast<size_t>(tensor->bytes));
  QT_RETURN_IF_ERROR(files.Read(*tensor, 0, tensor->bytes, bytes.data()));
  std::vector<float> values(static_cast<size_t>(tensor->bytes / StoredTypeBytes(tensor->type)));
  ConvertToF32(bytes.data(), *type, static_cast<int64_t>(values.size()), values.data());
  return values;
}

std::vector<float> Transposed(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
  std::vector<float> result(matrix.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      result[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * columns + c)];
    }
  }
  return result;
}

absl::StatusOr<SafetensorsReader> OpenDense(const std::string& directory, const std::string& folder,
                                            bool follow_symlinks) {
  const std::string path = absl::StrCat(directory, "/", folder);
  absl::StatusOr<SafetensorsReader> files =
      SafetensorsReader::OpenFile(path + "/model.safetensors", follow_symlinks);
  if (files.ok() || !absl::IsNotFound(files.status())) return files;
  return absl::InvalidArgumentError(absl::StrCat(
      folder,
      "/model.safetensors: no such file. If there is a pytorch_model.bin, which is not "
      "supported, convert it with: python3 -c \"import sys, torch, safetensors.torch as s; p = "
      "sys.argv[1]; s.save_file(torch.load(p + '/pytorch_model.bin', weights_only=True), p + "
      "'/model.safetensors')\" DIRECTORY/",
      folder));
}

absl::StatusOr<SentenceLayer> ReadDense(const std::string& directory, const std::string& folder,
                                        int64_t in, bool follow_symlinks) {
  QT_ASSIGN_OR_RETURN(const Fields fields,
                      Fields::Read(directory, absl::StrCat(folder, "/config.json")));
  QT_RETURN_IF_ERROR(CheckInput(fields));
  SentenceLayer layer;
  QT_ASSIGN_OR_RETURN(layer.in, fields.Whole("in_features", kMaxFeatures, 0));
  QT_ASSIGN_OR_RETURN(layer.out, fields.Whole("out_features", kMaxFeatures, 0));
  if (layer.in != in) {
    return fields.Wrong("in_features", absl::StrCat(in, " as the module before it gives"),
                        layer.in);
  }
  if (layer.out == 0) return fields.Wrong("out_features", "a whole number", nullptr);
  QT_ASSIGN_OR_RETURN(layer.activation, ReadActivation(fields));
  QT_ASSIGN_OR_RETURN(const bool bias, fields.Bool("bias", true));
  QT_ASSIGN_OR_RETURN(const bool residual, fields.Bool("use_residual", false));
  QT_ASSIGN_OR_RETURN(const SafetensorsReader files, OpenDense(directory, folder, follow_symlinks));
  const std::string where = absl::StrCat(folder, "/model.safetensors");
  const std::vector<int64_t> shape = {layer.out, layer.in};
  QT_ASSIGN_OR_RETURN(const std::vector<float> weight,
                      ReadTensor(files, where, "linear.weight", shape));
  layer.weight = Transposed(weight, layer.out, layer.in);
  if (bias) {
    QT_ASSIGN_OR_RETURN(layer.bias, ReadTensor(files, where, "linear.bias", {layer.out}));
  }
  if (residual && layer.in == layer.out) layer.residual = SentenceLayer::Residual::kInput;
  if (residual && layer.in != layer.out) {
    layer.residual = SentenceLayer::Residual::kProjected;
    QT_ASSIGN_OR_RETURN(const std::vector<float> projection,
                        ReadTensor(files, where, "residual.weight", shape));
    layer.residual_weight = Transposed(projection, layer.out, layer.in);
  }
  return layer;
}

absl::StatusOr<SentenceLayer> ReadLayer(const std::string& directory, const ModuleEntry& entry,
                                        int64_t in, bool follow_symlinks) {
  if (entry.kind == "Dense") return ReadDense(directory, entry.folder, in, follow_symlinks);
  SentenceLayer layer;
  layer.normalizes = true;
  layer.in = layer.out = in;
  if (!entry.folder.empty()) {
    QT_ASSIGN_OR_RETURN(const Fields fields,
                        Fields::Read(directory, absl::StrCat(entry.folder, "/config.json")));
    QT_RETURN_IF_ERROR(CheckInput(fields));
  }
  return layer;
}

// Reads the number of tokens to which sentence-transformers truncates inputs. It is max_seq_length
// of sentence_bert_config.json if that is set. Otherwise it is model_max_length of
// tokenizer_config.json, but at most the model's number of positions.
absl::Status ReadMaxTokens(const std::string& directory, const ModelConfig& config,
                           SentenceModules* modules) {
  constexpr int64_t kMost = int64_t{1} << 40;
  QT_ASSIGN_OR_RETURN(const Fields own, Fields::Read(directory, "sentence_bert_config.json"));
  QT_ASSIGN_OR_RETURN(modules->max_tokens, own.Whole("max_seq_length", kMost, 0));
  QT_ASSIGN_OR_RETURN(const bool lower, own.Bool("do_lower_case", false));
  if (lower) return own.Unsupported("do_lower_case", "true is not supported");
  if (modules->max_tokens > 0) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(const Fields tokenizer, Fields::Read(directory, "tokenizer_config.json"));
  const json* const limit = tokenizer.Find("model_max_length");
  // transformers writes about 1e30 for model_max_length if inputs of any length are allowed.
  if (limit != nullptr && limit->is_number() && limit->get<double>() >= 1 &&
      limit->get<double>() < 1e9) {
    modules->max_tokens = static_cast<int64_t>(limit->get<double>());
  }
  const int64_t positions = config.position_limit();
  if (positions > 0 && (modules->max_tokens == 0 || modules->max_tokens > positions)) {
    modules->max_tokens = positions;
  }
  return absl::OkStatus();
}

absl::Status ReadOwnFile(const std::string& directory, SentenceModules* modules) {
  QT_ASSIGN_OR_RETURN(const Fields own, Fields::Read(directory, kOwnFile));
  QT_ASSIGN_OR_RETURN(const std::string kind, own.String("model_type", "SentenceTransformer"));
  if (kind != "SentenceTransformer") {
    return own.Unsupported("model_type",
                           absl::StrCat("expected SentenceTransformer, got ", Printable(kind)));
  }
  modules->prompts = {{"query", ""}, {"document", ""}};
  if (const json* const prompts = own.Find("prompts")) {
    if (!prompts->is_object()) return own.Wrong("prompts", "an object", *prompts);
    for (const auto& [name, text] : prompts->items()) {
      if (!text.is_string() && !text.is_null()) {
        return own.Wrong("prompts", "strings", text);
      }
      modules->prompts[name] = text.is_null() ? "" : text.get<std::string>();
    }
  }
  QT_ASSIGN_OR_RETURN(modules->default_prompt, own.String("default_prompt_name", ""));
  if (!modules->default_prompt.empty() && modules->prompts.count(modules->default_prompt) == 0) {
    return own.Wrong("default_prompt_name", "a name in prompts", modules->default_prompt);
  }
  QT_ASSIGN_OR_RETURN(const int64_t truncate, own.Whole("truncate_dim", kMaxFeatures, 0));
  if (truncate > 0 && truncate < modules->columns) {
    modules->columns = truncate;
  }
  return absl::OkStatus();
}

// True for Instructor models. For these sentence-transformers always excludes the instruction (the
// prompt's tokens) from pooling, even if their files say otherwise.
bool IsInstructor(const std::string& directory) {
  const std::optional<HubId> id = HubIdOfSnapshot(directory);
  return id &&
         (id->repository == "hkunlp/instructor-base" ||
          id->repository == "hkunlp/instructor-large" || id->repository == "hkunlp/instructor-xl");
}

float Activated(SentenceLayer::Activation activation, float x) {
  switch (activation) {
    case SentenceLayer::Activation::kIdentity:
      return x;
    case SentenceLayer::Activation::kTanh:
      return std::tanh(x);
    case SentenceLayer::Activation::kRelu:
      return x > 0 ? x : 0;
    case SentenceLayer::Activation::kGelu:
      return static_cast<float>(0.5 * x * (1 + std::erf(x / std::sqrt(2.0))));
    case SentenceLayer::Activation::kSilu:
      return x / (1 + std::exp(-x));
    case SentenceLayer::Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

// Adds the product of the row vector x and the matrix `weight` to the row vector `sums`. `weight`
// has x.size() rows and `out` columns and is stored row by row.
void AddProduct(const std::vector<float>& x, const std::vector<float>& weight, float* sums,
                size_t out) {
  for (size_t i = 0; i < x.size(); ++i) {
    const float* const row = weight.data() + i * out;
    const float factor = x[i];
    for (size_t o = 0; o < out; ++o) sums[o] += factor * row[o];
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<const SentenceModules>> ReadSentenceModules(
    const std::string& directory, const ModelConfig& config, bool follow_symlinks) {
  if (ModelFormatOf(directory) != ModelFormat::kDirectory) {
    return std::unique_ptr<const SentenceModules>();
  }
  QT_ASSIGN_OR_RETURN(const std::vector<ModuleEntry> entries, ReadEntries(directory));
  if (entries.empty()) return std::unique_ptr<const SentenceModules>();
  auto modules = std::make_unique<SentenceModules>();
  QT_RETURN_IF_ERROR(ReadPooling(directory, entries[1].folder, config.d_model, modules.get()));
  for (size_t i = 2; i < entries.size(); ++i) {
    QT_ASSIGN_OR_RETURN(SentenceLayer layer,
                        ReadLayer(directory, entries[i], modules->columns, follow_symlinks));
    modules->columns = layer.out;
    modules->layers.push_back(std::move(layer));
  }
  QT_RETURN_IF_ERROR(ReadMaxTokens(directory, config, modules.get()));
  QT_RETURN_IF_ERROR(ReadOwnFile(directory, modules.get()));
  if (IsInstructor(directory)) modules->include_prompt = false;
  return modules;
}

absl::StatusOr<std::vector<std::string>> SentenceModuleFolders(const std::string& directory) {
  QT_ASSIGN_OR_RETURN(const std::vector<ModuleEntry> entries, ReadEntries(directory));
  std::vector<std::string> folders;
  for (const ModuleEntry& entry : entries) {
    if (!entry.folder.empty()) folders.push_back(entry.folder);
  }
  return folders;
}

void ApplySentenceLayer(const SentenceLayer& layer, std::vector<float>* values) {
  if (layer.normalizes) {
    double square = 0;
    for (const float v : *values) square += static_cast<double>(v) * v;
    const double scale = 1 / std::max(std::sqrt(square), 1e-12);
    for (float& v : *values) v = static_cast<float>(v * scale);
    return;
  }
  const auto out = static_cast<size_t>(layer.out);
  std::vector<float> sums = layer.bias.empty() ? std::vector<float>(out, 0.0f) : layer.bias;
  AddProduct(*values, layer.weight, sums.data(), out);
  for (float& sum : sums) sum = Activated(layer.activation, sum);
  if (layer.residual == SentenceLayer::Residual::kInput) {
    for (size_t i = 0; i < out; ++i) sums[i] += (*values)[i];
  } else if (layer.residual == SentenceLayer::Residual::kProjected) {
    AddProduct(*values, layer.residual_weight, sums.data(), out);
  }
  *values = std::move(sums);
}

}  // namespace quintet
