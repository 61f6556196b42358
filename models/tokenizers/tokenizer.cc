#include "models/tokenizers/tokenizer.h"

#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/out_of_memory.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/find_model.h"
#include "models/checkpoint/json.h"
#include "models/checkpoint/weight_files.h"
#include "models/tokenizers/byt5.h"
#include "models/tokenizers/sentencepiece.h"
#include "models/tokenizers/settings.h"
#include "models/tokenizers/tokenizer_file.h"
#include "models/tokenizers/tokenizer_json.h"

namespace quintet {
namespace {

constexpr int64_t kMaxFileBytes = 256 << 20;

absl::StatusOr<std::unique_ptr<const Tokenizer>> Read(const std::string& directory,
                                                      std::string_view model_type) {
  QT_ASSIGN_OR_RETURN(const TokenizerSettings settings,
                      ReadTokenizerSettings(directory, model_type));
  if (settings.tokenizer_class == TokenizerClass::kByT5) return MakeByT5(settings);

  absl::StatusOr<nlohmann::json> json = ReadJsonFile(directory + "/tokenizer.json", kMaxFileBytes);
  if (json.ok()) return ParseTokenizerJson(*std::move(json), "tokenizer.json", settings);
  if (!absl::IsNotFound(json.status())) return json.status();

  absl::StatusOr<std::string> model = ReadFile(directory + "/spiece.model", kMaxFileBytes);
  if (model.ok()) return ParseSentencePiece(*model, "spiece.model", settings);
  if (!absl::IsNotFound(model.status())) return model.status();

  absl::StatusOr<nlohmann::json> vocab = ReadJsonFile(directory + "/vocab.json", kMaxFileBytes);
  if (vocab.ok()) {
    QT_ASSIGN_OR_RETURN(const std::string merges,
                        ReadFile(directory + "/merges.txt", kMaxFileBytes));
    return ParseVocabAndMerges(*vocab, merges, settings);
  }
  if (!absl::IsNotFound(vocab.status())) return vocab.status();

  return absl::NotFoundError(
      "tokenizer: expected tokenizer.json, spiece.model, vocab.json with merges.txt, or a "
      "tokenizer_config.json that names "
      "ByT5Tokenizer; got none of them");
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> ReadOneFile(const std::string& path,
                                                             std::string_view model_type) {
  const TokenizerSettings settings = DefaultTokenizerSettings(model_type);
  const std::string name = Printable(path.substr(path.rfind('/') + 1));
  if (ModelFormatOf(path) != ModelFormat::kDirectory) {
    QT_ASSIGN_OR_RETURN(const std::string model, EmbeddedSentencePiece(path));
    return ParseSentencePiece(model, name, settings);
  }
  if (absl::EndsWith(path, ".json")) {
    QT_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonFile(path, kMaxFileBytes));
    return ParseTokenizerJson(std::move(json), name, settings);
  }
  QT_ASSIGN_OR_RETURN(const std::string model, ReadFile(path, kMaxFileBytes));
  return ParseSentencePiece(model, name, settings);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& path,
                                                               std::string_view model_type) {
  return CatchOutOfMemory([&] {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error) ? ReadOneFile(path, model_type)
                                                         : Read(path, model_type);
  });
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Load(const std::string& directory) {
  return LoadTokenizer(directory, "");
}

std::vector<TokenSpan> TruncateSpans(std::vector<TokenSpan> spans, std::span<const int32_t> ids) {
  if (spans.size() <= ids.size()) return spans;
  const TokenSpan last = spans.back();
  spans.resize(ids.size());
  if (!spans.empty() && spans.back().id != ids.back()) spans.back() = last;
  return spans;
}

}  // namespace quintet
