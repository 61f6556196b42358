#include "models/inspect.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/foreign_files.h"
#include "models/checkpoint/weight_files.h"
#include "models/config/derived_config.h"
#include "models/tokenizers/tokenizer_file.h"
#include "models/weights/table.h"
#include "nlohmann/json.hpp"

namespace quintet {
namespace {

std::string TokenizerFile(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::is_regular_file(directory, error)) {
    return Printable(std::filesystem::path(directory).filename().string());
  }
  for (const char* name : {"tokenizer.json", "spiece.model", "vocab.json"}) {
    if (std::filesystem::exists(directory + "/" + name, error)) return name;
  }
  return "bytes";
}

absl::Status ReadTokenizer(const std::string& directory, const ModelConfig& config,
                           TokenizerSummary* summary) {
  const auto tokenizer = LoadTokenizer(directory, FamilyName(config.family));
  if (absl::IsNotFound(tokenizer.status())) return absl::OkStatus();
  QT_RETURN_IF_ERROR(tokenizer.status());
  const Tokenizer& t = **tokenizer;
  *summary = {
      TokenizerFile(directory), t.vocab_size(), t.eos_id(), t.pad_id(), t.unk_id(), t.bos_id()};
  return absl::OkStatus();
}

std::vector<std::pair<std::string, int64_t>> ListFiles(const std::string& directory) {
  std::vector<std::pair<std::string, int64_t>> files;
  std::error_code error;
  if (std::filesystem::is_regular_file(directory, error)) {
    const std::filesystem::path file(directory);
    return {
        {file.filename().string(), static_cast<int64_t>(std::filesystem::file_size(file, error))}};
  }
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    std::error_code size_error;
    const auto bytes = entry.file_size(size_error);
    if (!size_error) {
      files.emplace_back(entry.path().filename().string(), static_cast<int64_t>(bytes));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<std::string> RecordedSha256(const std::string& model) {
  QT_ASSIGN_OR_RETURN(const nlohmann::json file, ReadConfigFile(model));
  const auto ours = file.find("quintet");
  if (ours == file.end() || !ours->is_object()) return "";
  const auto sha = ours->find("weights_sha256");
  return sha != ours->end() && sha->is_string() ? sha->get<std::string>() : "";
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Checkpoints often pad the embedding to a number of rows that is a multiple of one of these, which
// makes GEMMs faster.
constexpr int64_t kPaddings[] = {8, 64, 128};

// Whether `rows` is `vocab` rounded up to a multiple of a number in kPaddings.
bool IsPadded(int64_t vocab, int64_t rows) {
  return std::any_of(std::begin(kPaddings), std::end(kPaddings), [&](int64_t multiple) {
    return (vocab + multiple - 1) / multiple * multiple == rows;
  });
}

class WarningFinder {
 public:
  explicit WarningFinder(const Inspection& inspection)
      : in_(inspection), config_(inspection.config) {}

  std::vector<std::string> Find() {
    generates_ = config_.head == Head::kLanguageModel;
    CheckSpecialIds();
    CheckTokenizer();
    CheckStoredTypes();
    if (!config_.logit_scale_warning.empty()) Add(config_.logit_scale_warning);
    if (generates_) CheckGeneration();
    return std::move(warnings_);
  }

 private:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    warnings_.push_back(absl::StrCat(parts...));
  }

  void CheckSpecialIds() {
    if (generates_ && config_.eos_ids.empty()) {
      Add("config.json: eos_token_id: none; generation stops only at the length limit");
    }
    if (config_.family != Family::kGpt2 && config_.pad_id < 0) {
      Add("config.json: pad_token_id: none or negative; pass one if outputs are to be padded");
    }
    if (generates_ && Contains(config_.eos_ids, config_.decoder_start_id)) {
      Add("config.json: decoder_start_token_id ", config_.decoder_start_id,
          " is also an end-of-sequence id");
    }
  }

  void CheckTokenizer() {
    const TokenizerSummary& t = in_.tokenizer;
    if (t.file.empty()) {
      Add("no tokenizer files: inputs are token ids only");
      return;
    }
    if (t.vocab > config_.vocab) {
      Add("tokenizer: ", t.vocab, " ids, but the embedding has ", config_.vocab,
          " rows: texts with higher ids are rejected");
    } else if (t.vocab * 10 < config_.vocab * 9 && !IsPadded(t.vocab, config_.vocab)) {
      Add("tokenizer: ", t.vocab, " ids, but the embedding has ", config_.vocab,
          " rows: it may belong to another model");
    }
    if (t.eos_id >= 0 && !config_.eos_ids.empty() && !Contains(config_.eos_ids, t.eos_id)) {
      Add("tokenizer: end-of-sequence id ", t.eos_id, " differs from config.json's ",
          absl::StrJoin(config_.eos_ids, ", "));
    }
    if (config_.family != Family::kGpt2 && t.pad_id >= 0 && config_.pad_id >= 0 &&
        t.pad_id != config_.pad_id) {
      Add("tokenizer: padding id ", t.pad_id, " differs from config.json's ", config_.pad_id);
    }
  }

  void CheckStoredTypes() {
    if (config_.family != Family::kGpt2 && in_.stored_values.count("F16") > 0) {
      Add("weights: stored as F16, which T5 v1.1 and later models overflow in training and "
          "inference, "
          "so "
          "prefer a bf16 or f32 checkpoint if there is one");
    }
  }

  void CheckId(const char* field, int64_t id) {
    if (id >= config_.vocab) {
      Add("generation_config.json: ", field, ": ", id, " is outside the embedding of ",
          config_.vocab, " rows");
    }
  }

  void CheckGeneration() {
    const GenerationDefaults& g = in_.generation;
    for (const std::string& field : g.unsupported_fields) {
      Add(field, ": not supported; generate, bench and serve load the model only with ",
          kIgnoreGenerationFields);
    }
    for (int64_t id : g.eos_token_ids) CheckId("eos_token_id", id);
    for (int64_t id : g.suppress_tokens) CheckId("suppress_tokens", id);
    for (int64_t id : g.forced_eos_token_ids) CheckId("forced_eos_token_id", id);
    if (g.forced_bos_token_id) CheckId("forced_bos_token_id", *g.forced_bos_token_id);
    if (g.decoder_start_token_id) {
      CheckId("decoder_start_token_id", *g.decoder_start_token_id);
      if (config_.has_encoder() && *g.decoder_start_token_id != config_.decoder_start_id) {
        Add("generation_config.json: decoder_start_token_id ", *g.decoder_start_token_id,
            " overrides config.json's ", config_.decoder_start_id);
      }
    }
    const std::vector<int32_t> eos(g.eos_token_ids.begin(), g.eos_token_ids.end());
    if (!eos.empty() && eos != config_.eos_ids) {
      Add("generation_config.json: eos_token_id ", absl::StrJoin(eos, ", "),
          " overrides config.json's ",
          config_.eos_ids.empty() ? "none" : absl::StrJoin(config_.eos_ids, ", "));
    }
    if (g.num_beams && *g.num_beams > 32) {
      Add("generation_config.json: num_beams ", *g.num_beams, " is above the limit of 32");
    }
    if (!g.do_sample.value_or(false) && (g.temperature || g.top_p || g.top_k)) {
      Add("generation_config.json: temperature, top_p and top_k have an effect only with "
          "do_sample");
    }
  }

  const Inspection& in_;
  const ModelConfig& config_;
  bool generates_ = false;
  std::vector<std::string> warnings_;
};

}  // namespace

absl::StatusOr<Inspection> InspectModel(const std::string& model, const std::string& tokenizer,
                                        bool follow_symlinks) {
  Inspection result;
  QT_ASSIGN_OR_RETURN(result.config, ReadModelConfig(model));
  QT_ASSIGN_OR_RETURN(result.generation, ReadGenerationDefaults(model));
  QT_ASSIGN_OR_RETURN(result.weights_sha256, RecordedSha256(model));
  QT_ASSIGN_OR_RETURN(const std::unique_ptr<const WeightFiles> files,
                      WeightFiles::Open(model, follow_symlinks));
  for (const StoredTensor& tensor : files->tensors()) {
    const char* type = tensor.encoding != nullptr ? tensor.encoding : StoredTypeName(tensor.type);
    result.stored_values[type] += tensor.bytes / StoredTypeBytes(tensor.type);
  }
  WeightDestinations destinations;
  QT_ASSIGN_OR_RETURN(const std::vector<PlannedWeight> plan,
                      PlanWeights(*files, &result.config, &destinations));
  QT_ASSIGN_OR_RETURN(const std::string found, FindTokenizer(tokenizer, model, follow_symlinks));
  QT_RETURN_IF_ERROR(ReadTokenizer(found, result.config, &result.tokenizer));
  result.files = ListFiles(model);
  result.warnings = UnusedFileWarnings(model);
  const std::vector<std::string> mistakes = FindWarnings(result);
  result.warnings.insert(result.warnings.end(), mistakes.begin(), mistakes.end());
  return result;
}

std::vector<std::string> FindWarnings(const Inspection& inspection) {
  return WarningFinder(inspection).Find();
}

}  // namespace quintet
