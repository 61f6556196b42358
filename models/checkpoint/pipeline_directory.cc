#include "models/checkpoint/pipeline_directory.h"

#include <filesystem>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/checkpoint_file.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/weight_files.h"

namespace quintet {
namespace {

namespace fs = std::filesystem;

constexpr char kPipelineIndex[] = "model_index.json";
constexpr int64_t kMaxPipelineIndexBytes = int64_t{1} << 20;
constexpr char kEncoderFolder[] = "text_encoder", kTokenizerFolder[] = "tokenizer";

// Returns the class in `component`, a pair [library, class]; empty for any other JSON value.
std::string ClassOf(const nlohmann::json& component) {
  const bool pair = component.is_array() && component.size() == 2 && component[1].is_string();
  return pair ? component[1].get<std::string>() : "";
}

// Whether `name` is a T5 model class: T5EncoderModel, UMT5EncoderModel, MT5EncoderModel, ...
bool IsT5(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "UM")) absl::ConsumePrefix(&name, "M");
  return absl::StartsWith(name, "T5") && !absl::StrContains(name, "Tokenizer");
}

}  // namespace

absl::StatusOr<std::string> FindTextEncoder(const std::string& directory) {
  if (!HasEntry(directory, kPipelineIndex) || HasEntry(directory, "config.json")) return directory;
  QT_ASSIGN_OR_RETURN(
      const nlohmann::json index,
      ReadJsonFile(absl::StrCat(directory, "/", kPipelineIndex), kMaxPipelineIndexBytes, 8));
  if (!index.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(kPipelineIndex, ": expected an object"));
  }
  std::vector<std::string> encoders, others;
  for (const auto& [name, component] : index.items()) {
    const std::string type = ClassOf(component);
    if (type.empty() || !IsPlainFileName(name)) continue;
    if (absl::StartsWith(name, kEncoderFolder))
      others.push_back(absl::StrCat(Printable(name), " (", Printable(type), ")"));
    if (IsT5(type)) encoders.push_back(name);
  }
  if (encoders.size() == 1)
    return absl::StrCat(absl::StripSuffix(directory, "/"), "/", encoders[0]);
  if (encoders.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kPipelineIndex, ": the pipeline has no T5 text encoder",
                     others.empty() ? "" : absl::StrCat(", but ", absl::StrJoin(others, ", ")),
                     "; pass the folder of a T5 model"));
  }
  for (std::string& name : encoders) name = Printable(name);
  return absl::InvalidArgumentError(
      absl::StrCat(kPipelineIndex, ": the pipeline has ", encoders.size(),
                   " T5 text encoders; pass the folder of one of them: ",
                   absl::StrJoin(encoders, ", ", [&](std::string* out, const std::string& name) {
                     absl::StrAppend(out, directory, "/", name);
                   })));
}

std::string TokenizerBeside(const std::string& model) {
  std::error_code error;
  const fs::path folder = fs::canonical(model, error);
  if (error || !fs::is_directory(folder, error)) return model;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "spiece.model"}) {
    if (HasEntry(model, name)) return model;
  }
  const std::string name = folder.filename().string(), pipeline = folder.parent_path().string();
  absl::string_view number = name;  // "_2" of text_encoder_2
  if (!absl::ConsumePrefix(&number, kEncoderFolder)) return model;
  if (!HasEntry(pipeline, kPipelineIndex)) return model;
  const auto index =
      ReadJsonFile(absl::StrCat(pipeline, "/", kPipelineIndex), kMaxPipelineIndexBytes, 8);
  const std::string tokenizer = absl::StrCat(kTokenizerFolder, number);
  if (!index.ok() || !index->is_object() || !index->contains(tokenizer)) return model;
  if (ClassOf((*index)[tokenizer]).empty()) return model;
  const std::string beside = absl::StrCat(pipeline, "/", tokenizer);
  return fs::is_directory(beside, error) ? beside : model;
}

}  // namespace quintet
