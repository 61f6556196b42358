#include "models/config/derived_config.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/config/config_families.h"

namespace quintet {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr char kAttention[] = "encoder.block.0.layer.0.SelfAttention.";
constexpr char kFeedForward[] = "encoder.block.0.layer.1.DenseReluDense.";
constexpr char kBias[] = "layer.0.SelfAttention.relative_attention_bias.weight";

class ShapeReader {
 public:
  ShapeReader(const WeightFiles& files, const std::string& where) : files_(files), where_(where) {}

  bool Has(const std::string& name) const { return files_.Find(name) != nullptr; }

  // Returns the matrix of the first of `names` that the file has.
  absl::StatusOr<const StoredTensor*> Matrix(std::initializer_list<std::string> names) const {
    for (const std::string& name : names) {
      const StoredTensor* tensor = files_.Find(name);
      if (tensor == nullptr) continue;
      if (tensor->shape.size() == 2 && tensor->shape[0] > 0 && tensor->shape[1] > 0) return tensor;
      return absl::InvalidArgumentError(absl::StrCat(where_, ": tensor ", name, " is ",
                                                     Describe(tensor->type, tensor->shape),
                                                     ", expected a matrix"));
    }
    return absl::InvalidArgumentError(absl::StrCat(where_, ": no tensor ", *names.begin(),
                                                   ", from which the configuration is derived"));
  }

  // Returns the number of layers of a stack: 1 + the highest layer number in a tensor name.
  int64_t Layers(absl::string_view stack) const {
    int64_t layers = 0;
    for (const StoredTensor& tensor : files_.tensors()) {
      absl::string_view rest = tensor.name;
      int64_t layer;
      if (absl::ConsumePrefix(&rest, stack) && absl::ConsumePrefix(&rest, ".block.") &&
          absl::SimpleAtoi(rest.substr(0, rest.find('.')), &layer) && layer >= 0 &&
          layer < kMaxLayers) {
        layers = std::max(layers, layer + 1);
      }
    }
    return layers;
  }

 private:
  const WeightFiles& files_;
  const std::string& where_;
};

// Adds the fields of `stated` to *config; an error if *config has another value for a field.
absl::Status AddStated(const nlohmann::json& stated, const std::string& where,
                       nlohmann::json* config) {
  for (const auto& [field, value] : stated.items()) {
    const auto derived = config->find(field);
    if (derived == config->end()) {
      (*config)[field] = value;
    } else if (*derived != value) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", field, ": the file states ",
                                                     value.dump(), ", but its tensors have ",
                                                     derived->dump()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<nlohmann::json> DeriveConfig(const WeightFiles& files, const std::string& where) {
  const ShapeReader shapes(files, where);
  const std::string attention = kAttention, feed_forward = kFeedForward;
  QT_ASSIGN_OR_RETURN(const StoredTensor* embedding,
                      shapes.Matrix({"shared.weight", "encoder.embed_tokens.weight"}));
  QT_ASSIGN_OR_RETURN(const StoredTensor* query, shapes.Matrix({attention + "q.weight"}));
  QT_ASSIGN_OR_RETURN(const StoredTensor* bias,
                      shapes.Matrix({attention + "relative_attention_bias.weight"}));
  const bool gated = shapes.Has(feed_forward + "wi_0.weight");
  QT_ASSIGN_OR_RETURN(const StoredTensor* in,
                      shapes.Matrix({feed_forward + (gated ? "wi_0.weight" : "wi.weight")}));
  const int64_t heads = bias->shape[1], inner = query->shape[0];
  if (inner % heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": the query projection has ", inner,
                                                   " rows, which is no multiple of the ", heads,
                                                   " heads of the position bias"));
  }
  const bool umt5 = shapes.Has(absl::StrCat("encoder.block.1.", kBias));
  const int64_t decoder_layers = shapes.Layers("decoder");
  nlohmann::json config = {
      {"model_type", umt5 ? "umt5" : "t5"},
      {"architectures",
       {absl::StrCat(umt5 ? "UMT5" : "T5",
                     decoder_layers > 0 ? "ForConditionalGeneration" : "EncoderModel")}},
      {"vocab_size", embedding->shape[0]},
      {"d_model", embedding->shape[1]},
      {"d_kv", inner / heads},
      {"d_ff", in->shape[0]},
      {"num_layers", shapes.Layers("encoder")},
      {"num_heads", heads},
      {"relative_attention_num_buckets", bias->shape[0]},
      {"feed_forward_proj", gated ? "gated-gelu" : "relu"},
      {"tie_word_embeddings", !shapes.Has("lm_head.weight")},
  };
  if (decoder_layers > 0) config["num_decoder_layers"] = decoder_layers;
  QT_RETURN_IF_ERROR(AddStated(files.ConfigFields(), where, &config));
  return config;
}

absl::StatusOr<nlohmann::json> ReadConfigFile(const std::string& model) {
  if (ModelFormatOf(model) == ModelFormat::kDirectory) {
    QT_ASSIGN_OR_RETURN(nlohmann::json config,
                        ReadJsonFile(model + "/config.json", kMaxConfigBytes));
    if (config.is_object()) return config;
    return absl::InvalidArgumentError("config.json: expected an object");
  }
  // If the file is a symbolic link, FindModel has already checked it.
  QT_ASSIGN_OR_RETURN(const auto files, WeightFiles::Open(model, /*follow_symlinks=*/true));
  return DeriveConfig(*files, Printable(model.substr(model.rfind('/') + 1)));
}

}  // namespace quintet
