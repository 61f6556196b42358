#include "models/checkpoint/foreign_files.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checkpoint_file.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/safetensors.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxJsonBytes = int64_t{16} << 20;
constexpr char kWeights[] = "model.safetensors";
constexpr char kWeightsIndex[] = "model.safetensors.index.json";

bool HasWeights(const std::string& directory) {
  return HasEntry(directory, kWeights) || HasEntry(directory, kWeightsIndex);
}

// Whether `name` is a variant of a weight file: model.fp16.safetensors, pytorch_model.fp16.bin,
// model.fp16-00001-of-00002.safetensors, model.safetensors.index.fp16.json.
bool IsVariant(const std::string& name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "model.") && !absl::ConsumePrefix(&rest, "pytorch_model.")) {
    return false;
  }
  if (absl::ConsumePrefix(&rest, "safetensors.index.")) {
    return name != kWeightsIndex && absl::EndsWith(rest, ".json");
  }
  return name != kWeights &&
         (absl::ConsumeSuffix(&rest, ".safetensors") || absl::ConsumeSuffix(&rest, ".bin")) &&
         !rest.empty();
}

bool IsShard(const std::string& name) {
  return absl::StartsWith(name, "model-") && absl::EndsWith(name, ".safetensors");
}

bool IsAdapter(const std::string& name) {
  return name == "adapter_config.json" || name == "adapter_model.safetensors" ||
         name == "adapter_model.bin";
}

// A format that Quintet does not read, recognized by file names.
struct Format {
  bool (*matches)(const std::string& name);
  const char* what;  // follows the file's name
};

constexpr char kConvertBin[] =
    ": pickle files are not supported. Convert it with: python3 -c \"import sys, transformers as "
    "t; p = sys.argv[1]; c = t.AutoConfig.from_pretrained(p); getattr(t, c.architectures[0])"
    ".from_pretrained(p).save_pretrained(p, safe_serialization=True)\" DIRECTORY";

// File formats in order of priority: if the files of a directory match several entries, the error
// message has the text of the first of these entries.
const Format kFormats[] = {
    {IsAdapter,
     ": a PEFT adapter is not a model of its own. Merge it into its base model with: quintet "
     "convert BASE MERGED --adapter DIRECTORY"},
    {[](const std::string& name) { return absl::EndsWith(name, ".gguf"); },
     ": a GGUF model is read from its file; pass the file instead of the directory"},
    {[](const std::string& name) {
       return absl::StartsWith(name, "pytorch_model") && !IsVariant(name);
     },
     kConvertBin},
    {IsVariant,
     ": variants are not read; rename the file to model.safetensors (a pytorch_model.*.bin to "
     "pytorch_model.bin, which must then be converted), or download the repository without a "
     "variant"},
    {IsShard,
     ": a shard without model.safetensors.index.json, which lists the shards; copy or download "
     "that file as well"},
    {[](const std::string& name) {
       return absl::StartsWith(name, "tf_model") || name == "saved_model.pb" ||
              absl::EndsWith(name, ".ckpt.index") || absl::EndsWith(name, ".h5");
     },
     ": TensorFlow weights are not supported. With transformers 4 and TensorFlow they are "
     "converted by: python3 -c \"import sys, transformers as t; p = sys.argv[1]; c = "
     "t.AutoConfig.from_pretrained(p); getattr(t, c.architectures[0]).from_pretrained(p, "
     "from_tf=True).save_pretrained(p)\" DIRECTORY"},
    {[](const std::string& name) { return absl::EndsWith(name, ".msgpack"); },
     ": Flax weights are not supported. With transformers 4 and Flax they are converted by: "
     "python3 -c \"import sys, transformers as t; p = sys.argv[1]; c = "
     "t.AutoConfig.from_pretrained(p); getattr(t, c.architectures[0]).from_pretrained(p, "
     "from_flax=True).save_pretrained(p)\" DIRECTORY"},
    {[](const std::string& name) { return absl::EndsWith(name, ".onnx") || name == "onnx"; },
     ": ONNX models are not supported; use the checkpoint that it was made from"},
    {[](const std::string& name) { return absl::StartsWith(name, "openvino_model"); },
     ": OpenVINO models are not supported; use the checkpoint that it was made from"},
    {[](const std::string& name) { return name == "model.bin"; },
     ": a CTranslate2 model is not supported; use the checkpoint that it was made from"},
    {[](const std::string& name) { return absl::EndsWith(name, ".safetensors"); },
     ": expected the name model.safetensors, or an index model.safetensors.index.json; a text "
     "encoder in one file is read without config.json if you pass the file instead of the "
     "directory"},
    {[](const std::string& name) {
       for (const char* suffix : {".pt", ".pth", ".ckpt", ".bin", ".nemo"}) {
         if (absl::EndsWith(name, suffix)) return true;
       }
       return false;
     },
     ": training checkpoints are not supported; save the model with save_pretrained"},
    {[](const std::string& name) { return name == "snapshots"; },
     ": this is a repository's folder in the Hugging Face cache; pass the repository's id or one "
     "of "
     "these directories"},
};

std::optional<std::string> ForeignFormat(const std::vector<std::string>& names) {
  for (const Format& format : kFormats) {
    for (const std::string& name : names) {
      if (format.matches(name)) return absl::StrCat(Printable(name), format.what);
    }
  }
  return std::nullopt;
}

// Lists up to five sub-directories that are models, such as the checkpoints in the output directory
// of a training run, or the models of a pipeline.
std::string ModelsBelow(const std::string& directory, const std::vector<std::string>& names) {
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(directory, "/", name);
    if (HasEntry(path, "config.json") && HasWeights(path)) found.push_back(Printable(name));
  }
  constexpr size_t kMost = 5;
  if (found.size() > kMost) found.resize(kMost);
  return absl::StrJoin(found, ", ");
}

std::string CompleteDownload(const std::string& directory) {
  if (HasEntry(directory, "snapshots")) return "";
  const std::optional<HubId> id = HubIdOfSnapshot(directory);
  return id ? absl::StrCat("; complete the download with: ", id->DownloadCommand()) : "";
}

absl::Status Explain(const std::string& directory, const char* missing) {
  const std::vector<std::string> names = EntryNames(directory);
  const std::string models = HasEntry(directory, "snapshots") ? "" : ModelsBelow(directory, names);
  if (!models.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ", missing, ", but there are models in its sub-directories: ", models,
                     "; pass one of these"));
  }
  if (const std::optional<std::string> format = ForeignFormat(names)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ", missing, "; found ", *format, CompleteDownload(directory)));
  }
  return absl::NotFoundError(
      absl::StrCat("no ", missing, " in the model directory", CompleteDownload(directory)));
}

// Returns the shards that the index names. Empty if the index cannot be read; loading the model
// then reports that error.
std::set<std::string> IndexedShards(const std::string& directory) {
  std::set<std::string> shards;
  const auto index = ReadJsonFile(absl::StrCat(directory, "/", kWeightsIndex), kMaxJsonBytes);
  if (!index.ok() || !index->is_object()) return shards;
  const auto map = index->find("weight_map");
  if (map == index->end() || !map->is_object()) return shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (shard.is_string()) shards.insert(shard.get<std::string>());
  }
  return shards;
}

// Returns whether the model needs Python code that comes with its checkpoint (auto_map in
// config.json) and that Quintet does not implement. FAT5 models (flash_t5) also name such code, but
// Quintet implements it.
bool NamesForeignCode(const std::string& directory) {
  const auto config = ReadJsonFile(directory + "/config.json", kMaxJsonBytes);
  return config.ok() && config->is_object() && config->contains("auto_map") &&
         config->value("model_type", nlohmann::json()) != "flash_t5";
}

// Files that sentence-transformers writes along with modules.json. Quintet reads them only if
// modules.json exists.
constexpr const char* kSentenceFiles[] = {"1_Pooling/config.json",
                                          "config_sentence_transformers.json"};

bool IsSentenceFile(const std::string& name) {
  return std::find(std::begin(kSentenceFiles), std::end(kSentenceFiles), name) !=
         std::end(kSentenceFiles);
}

constexpr const char* kOtherTokenizers[] = {"tokenizer.model", "sentencepiece.bpe.model",
                                            "sentencepiece.model", "source.spm", "target.spm"};

// Returns a part of a warning that says how the model's results could change because Quintet does
// not read the file `name`. Empty if Quintet reads the file, or if results cannot change.
std::string Effect(const std::string& directory, const std::string& name,
                   const std::set<std::string>& shards, bool has_tokenizer) {
  if (IsAdapter(name)) {
    // Warn once per adapter: for its configuration or, if there is none, for its weights.
    return name == "adapter_config.json" || !HasEntry(directory, "adapter_config.json")
               ? "the PEFT adapter is not applied; merge it first (quintet convert --adapter)"
               : "";
  }
  if (IsSentenceFile(name) && !HasEntry(directory, "modules.json")) {
    return "modules.json, which names the modules of sentence-transformers, is missing; pooling "
           "and prompts may differ from those of the model";
  }
  const bool single = HasEntry(directory, kWeights);
  if (name == kWeightsIndex && single) return "model.safetensors is used instead";
  if (IsVariant(name) && absl::EndsWith(name, ".safetensors")) {
    return absl::StrCat(single ? kWeights : kWeightsIndex, " is used instead of this variant");
  }
  if (absl::EndsWith(name, ".safetensors") && name != kWeights && (single || !shards.count(name))) {
    return IsShard(name) && single ? "model.safetensors is used instead of the shards"
                                   : "its tensors are not read";
  }
  for (const char* other : kOtherTokenizers) {
    if (name == other && !has_tokenizer) {
      return "tokenizers are read from tokenizer.json, spiece.model, or vocab.json with merges.txt";
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> EntryNames(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;  // the range-based loop would throw
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status CheckModelFiles(const std::string& directory) {
  if (!HasEntry(directory, "config.json")) return Explain(directory, "config.json");
  return HasWeights(directory) ? absl::OkStatus() : ExplainNoWeights(directory);
}

absl::Status ExplainNoWeights(const std::string& directory) {
  return Explain(directory, "weights: expected model.safetensors or model.safetensors.index.json");
}

std::string ExplainFile(const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name != kWeights && name != kWeightsIndex && name != "config.json") {
    if (const std::optional<std::string> format = ForeignFormat({name})) return *format;
  }
  return "is not a directory; pass the directory that holds config.json and model.safetensors";
}

std::vector<std::string> UnusedFileWarnings(const std::string& directory) {
  std::vector<std::string> names = EntryNames(directory);
  for (const char* name : kSentenceFiles) {
    if (absl::StrContains(name, "/") && HasEntry(directory, name)) names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  const std::set<std::string> shards = IndexedShards(directory);
  const bool has_tokenizer = HasEntry(directory, "tokenizer.json") ||
                             HasEntry(directory, "spiece.model") ||
                             HasEntry(directory, "vocab.json");
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    std::string effect = Effect(directory, name, shards, has_tokenizer);
    if (effect.empty()) continue;
    warnings.push_back(absl::StrCat(Printable(name), ": not used: ", effect));
  }
  if (NamesForeignCode(directory)) {
    warnings.push_back(
        "config.json: auto_map: the code of the checkpoint is never run; results may differ from "
        "those of transformers with trust_remote_code");
  }
  return warnings;
}

}  // namespace quintet
