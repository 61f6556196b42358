// Reads the "model" of tokenizer.json, and GPT-2's vocab.json and merges.txt.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/bpe.h"
#include "models/tokenizers/byte_level.h"
#include "models/tokenizers/fields.h"
#include "models/tokenizers/gpt2.h"
#include "models/tokenizers/tokenizer_json.h"
#include "models/tokenizers/unigram.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

absl::Status AddTo(Vocabulary* vocabulary, std::string_view piece, int64_t id,
                   const std::string& where) {
  const absl::Status status = vocabulary->Add(piece, id);
  return status.ok()
             ? status
             : absl::InvalidArgumentError(absl::StrCat(where, ": vocab: ", status.message()));
}

absl::StatusOr<std::unique_ptr<const TokenModel>> ParseUnigram(const Json& json,
                                                               const std::string& where) {
  const Json* vocab = FindField(json, "vocab");
  if (vocab == nullptr || !vocab->is_array() || vocab->empty()) {
    return ExpectedField(where, "vocab", "a list of [piece, score]",
                         vocab == nullptr ? Json() : *vocab);
  }
  Vocabulary vocabulary;
  UnigramOptions options;
  QT_ASSIGN_OR_RETURN(options.byte_fallback, BoolField(json, "byte_fallback", false, where));
  double lowest = INFINITY;
  for (size_t id = 0; id < vocab->size(); ++id) {
    const Json& entry = (*vocab)[id];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return ExpectedField(where, absl::StrCat("vocab[", id, "]"), "[piece, score]", entry);
    }
    QT_RETURN_IF_ERROR(AddTo(&vocabulary, entry[0].get_ref<const std::string&>(),
                             static_cast<int64_t>(id), where));
    options.scores.push_back(entry[1].get<double>());
    lowest = std::min(lowest, options.scores.back());
  }
  options.unknown_score = lowest - 10.0;
  QT_ASSIGN_OR_RETURN(const int64_t unknown, IntField(json, "unk_id", where));
  if (unknown < 0 || unknown >= vocabulary.size()) {
    return ExpectedField(where, "unk_id", absl::StrCat("an id in [0, ", vocabulary.size(), ")"),
                         unknown);
  }
  auto unigram =
      Unigram::Make(std::move(vocabulary), static_cast<int32_t>(unknown), std::move(options));
  if (!unigram.ok())
    return absl::InvalidArgumentError(absl::StrCat(where, ": vocab: ", unigram.status().message()));
  return unigram;
}

absl::Status ParseVocab(const Json& vocab, const std::string& where, Vocabulary* vocabulary) {
  if (!vocab.is_object()) return ExpectedField(where, "vocab", "an object", vocab);
  for (const auto& [piece, id] : vocab.items()) {
    if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() > INT64_MAX)) {
      return ExpectedField(where, absl::StrCat("vocab: \"", piece.substr(0, 64), "\""), "an id",
                           id);
    }
    QT_RETURN_IF_ERROR(AddTo(vocabulary, piece, id.get<int64_t>(), where));
  }
  return absl::OkStatus();
}

// Parses one BPE merge, "a b" or ["a", "b"], and adds it to options->merges.
absl::Status ParseMerge(const Json& merge, const std::string& where, BpeOptions* options) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    options->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    return absl::OkStatus();
  }
  if (merge.is_string()) {
    const std::string& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      options->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
      return absl::OkStatus();
    }
  }
  return ExpectedField(where, absl::StrCat("merges[", options->merges.size(), "]"), "two pieces",
                       merge);
}

absl::StatusOr<std::unique_ptr<const TokenModel>> ParseBpe(const Json& json,
                                                           const std::string& where) {
  const Json* vocab = FindField(json, "vocab");
  const Json* merges = FindField(json, "merges");
  Vocabulary vocabulary;
  QT_RETURN_IF_ERROR(ParseVocab(vocab == nullptr ? Json() : *vocab, where, &vocabulary));
  if (merges == nullptr || !merges->is_array()) {
    return ExpectedField(where, "merges", "a list", merges == nullptr ? Json() : *merges);
  }
  BpeOptions options;
  for (const Json& merge : *merges) QT_RETURN_IF_ERROR(ParseMerge(merge, where, &options));
  const Json* dropout = FindField(json, "dropout");
  if (dropout != nullptr && *dropout != 0)
    return ExpectedField(where, "dropout", "null or 0", *dropout);
  QT_ASSIGN_OR_RETURN(options.unknown_token, StringField(json, "unk_token", "", where));
  QT_ASSIGN_OR_RETURN(options.continuing_subword_prefix,
                      StringField(json, "continuing_subword_prefix", "", where));
  QT_ASSIGN_OR_RETURN(options.end_of_word_suffix,
                      StringField(json, "end_of_word_suffix", "", where));
  QT_ASSIGN_OR_RETURN(options.fuse_unknown, BoolField(json, "fuse_unk", false, where));
  QT_ASSIGN_OR_RETURN(options.byte_fallback, BoolField(json, "byte_fallback", false, where));
  QT_ASSIGN_OR_RETURN(options.ignore_merges, BoolField(json, "ignore_merges", false, where));
  absl::StatusOr<std::unique_ptr<Bpe>> bpe = Bpe::Make(std::move(vocabulary), std::move(options));
  if (!bpe.ok())
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", bpe.status().message()));
  return std::unique_ptr<const TokenModel>(*std::move(bpe));
}

absl::StatusOr<BpeOptions> ParseMergesText(std::string_view text) {
  BpeOptions options;
  size_t line_number = 0;
  while (!text.empty()) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || line.substr(0, 8) == "#version") continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("merges.txt: line ", line_number,
                                                     ": expected two pieces, got \"",
                                                     std::string(line.substr(0, 80)), "\""));
    }
    options.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TokenModel>> ParseTokenModel(const Json& json,
                                                                  const std::string& where) {
  if (!json.is_object()) return ExpectedField(where, "field", "an object", json);
  QT_ASSIGN_OR_RETURN(std::string type, StringField(json, "type", "", where));
  // In old tokenizer.json files the model has no field "type".
  if (type.empty()) type = FindField(json, "merges") != nullptr ? "BPE" : "Unigram";
  if (type == "Unigram") return ParseUnigram(json, where);
  if (type == "BPE") return ParseBpe(json, where);
  return absl::UnimplementedError(
      absl::StrCat(where, ": type: expected Unigram or BPE, got ", type.substr(0, 64)));
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseVocabAndMerges(
    const Json& vocab, std::string_view merges, const TokenizerSettings& given) {
  Vocabulary vocabulary;
  QT_RETURN_IF_ERROR(ParseVocab(vocab, "vocab.json", &vocabulary));
  QT_ASSIGN_OR_RETURN(BpeOptions options, ParseMergesText(merges));
  absl::StatusOr<std::unique_ptr<Bpe>> bpe = Bpe::Make(std::move(vocabulary), std::move(options));
  if (!bpe.ok())
    return absl::InvalidArgumentError(absl::StrCat("merges.txt: ", bpe.status().message()));
  PipelineParts parts;
  parts.model = *std::move(bpe);
  QT_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Compile(kGpt2Pattern, "GPT-2's pattern"));
  parts.pre_tokenizer =
      MakeByteLevel(given.add_prefix_space, std::make_unique<const Pattern>(std::move(pattern)));
  parts.decoder = MakeByteLevelDecoder();
  TokenizerSettings settings = given;
  SetGpt2Defaults(&settings);
  QT_RETURN_IF_ERROR(ApplySettings(settings, &parts));
  if (settings.add_bos && parts.ids.bos >= 0) parts.prefix = {parts.ids.bos};
  if (settings.add_eos && parts.ids.eos >= 0) parts.suffix = {parts.ids.eos};
  parts.clean_up_spaces = settings.clean_up_spaces && settings.clean_up_spaces_of_bpe;
  return Pipeline::Make(std::move(parts));
}

}  // namespace quintet
