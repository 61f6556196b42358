// Makes a tokenizer from tokenizer.json. This file reads the added tokens, the post-processor and
// the special ids, and calls the readers of the other parts.
#include "models/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/tokenizers/fields.h"
#include "models/tokenizers/gpt2.h"
#include "models/tokenizers/t5.h"
#include "models/tokenizers/text_growth.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

absl::StatusOr<int32_t> KnownId(const Json& value, const std::string& where,
                                const std::string& field) {
  if (!value.is_number_integer() || value < 0 || value >= kMaxVocabulary) {
    return ExpectedField(where, field, absl::StrCat("an id in [0, ", kMaxVocabulary, ")"), value);
  }
  return value.get<int32_t>();
}

absl::StatusOr<std::vector<AddedToken>> ParseAddedTokens(const Json& json,
                                                         const Vocabulary& vocabulary,
                                                         const std::string& where) {
  std::vector<AddedToken> tokens;
  const Json* list = FindField(json, "added_tokens");
  if (list == nullptr) return tokens;
  if (!list->is_array()) return ExpectedField(where, "added_tokens", "a list", *list);
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& entry = (*list)[i];
    const std::string place = absl::StrCat(where, ": added_tokens[", i, "]");
    if (!entry.is_object()) return ExpectedField(place, "token", "an object", entry);
    QT_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry, false, place));
    const Json* id = FindField(entry, "id");
    QT_ASSIGN_OR_RETURN(token.id, KnownId(id == nullptr ? Json() : *id, place, "id"));
    const int32_t known = vocabulary.Find(token.content);
    if ((known >= 0 && known != token.id) || (known < 0 && vocabulary.Has(token.id))) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, ": id of \"", token.content.substr(0, 64),
                       "\": expected an id that agrees with the vocabulary, got ", token.id));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Adds `tokens` to *numbered, the added tokens whose ids are in the files
// (TokenizerSettings::numbered), and sorts the result by id. A token of `tokens` replaces a token
// of *numbered that has the same id.
void AddNumbered(const std::vector<AddedToken>& tokens, std::vector<AddedToken>* numbered) {
  std::unordered_map<int32_t, size_t> places;
  for (size_t i = 0; i < numbered->size(); ++i) places[(*numbered)[i].id] = i;
  for (const AddedToken& token : tokens) {
    const auto [place, fresh] = places.try_emplace(token.id, numbered->size());
    if (fresh) {
      numbered->push_back(token);
    } else {
      (*numbered)[place->second] = token;
    }
  }
  std::sort(numbered->begin(), numbered->end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
}

// Parses one item of a TemplateProcessing. {"Sequence": {"id": "A"}} stands for the text and sets
// *after_text. {"SpecialToken": {"id": "</s>"}} adds the token's ids to parts->suffix if
// *after_text is set, otherwise to parts->prefix.
absl::Status ParseTemplateItem(const Json& item, const Json& special_tokens,
                               const std::string& where, bool* after_text, PipelineParts* parts) {
  if (const Json* sequence = FindField(item, "Sequence"); sequence != nullptr) {
    QT_ASSIGN_OR_RETURN(const std::string id, StringField(*sequence, "id", where));
    if (id != "A" || *after_text) return ExpectedField(where, "Sequence", "\"A\" once", id);
    *after_text = true;
    return absl::OkStatus();
  }
  const Json* special = FindField(item, "SpecialToken");
  if (special == nullptr) return ExpectedField(where, "item", "a Sequence or a SpecialToken", item);
  QT_ASSIGN_OR_RETURN(const std::string name, StringField(*special, "id", where));
  const Json* token = FindField(special_tokens, name.c_str());
  const Json* ids = token == nullptr ? nullptr : FindField(*token, "ids");
  if (ids == nullptr || !ids->is_array() || ids->size() > 64) {
    return ExpectedField(where, absl::StrCat("special_tokens: ", name.substr(0, 64), ": ids"),
                         "a list of at most 64 ids", ids == nullptr ? Json() : *ids);
  }
  for (const Json& id : *ids) {
    QT_ASSIGN_OR_RETURN(const int32_t value, KnownId(id, where, "ids"));
    (*after_text ? parts->suffix : parts->prefix).push_back(value);
  }
  return absl::OkStatus();
}

absl::Status ParseTemplate(const Json& json, const std::string& where, PipelineParts* parts) {
  const Json* single = FindField(json, "single");
  const Json* special_tokens = FindField(json, "special_tokens");
  if (single == nullptr || !single->is_array() || single->size() > 64) {
    return ExpectedField(where, "single", "a list of at most 64 items",
                         single == nullptr ? Json() : *single);
  }
  bool after_text = false;
  for (const Json& item : *single) {
    QT_RETURN_IF_ERROR(
        ParseTemplateItem(item, special_tokens == nullptr ? Json::object() : *special_tokens,
                          absl::StrCat(where, ": single"), &after_text, parts));
  }
  if (!after_text) return ExpectedField(where, "single", "a Sequence \"A\"", *single);
  return absl::OkStatus();
}

// Returns the id in a field of the form ["</s>", 2], as in RobertaProcessing and BertProcessing.
absl::StatusOr<int32_t> PairId(const Json& json, const char* field, const std::string& where) {
  const Json* pair = FindField(json, field);
  if (pair == nullptr || !pair->is_array() || pair->size() != 2) {
    return ExpectedField(where, field, "[token, id]", pair == nullptr ? Json() : *pair);
  }
  return KnownId((*pair)[1], where, field);
}

// Sets each of eos, pad, bos and unk in parts->ids that is still unset (-1) to the id of the token
// with the usual spelling ("</s>" or "<|endoftext|>" for eos), if there is such a token.
void SetDefaultIds(PipelineParts* parts) {
  const auto set_default = [&](const char* content, int32_t* id) {
    if (*id >= 0) return;
    const AddedToken* added = parts->added.FindContent(content);
    *id = added != nullptr ? added->id : parts->model->vocabulary.Find(content);
  };
  set_default("</s>", &parts->ids.eos);
  set_default("<|endoftext|>", &parts->ids.eos);
  set_default("<pad>", &parts->ids.pad);
  set_default("<s>", &parts->ids.bos);
  set_default("<|endoftext|>", &parts->ids.bos);
  set_default("<unk>", &parts->ids.unk);
  if (parts->ids.unk < 0) parts->ids.unk = parts->model->unknown;
}

// Reads all parts of tokenizer.json except its added tokens.
absl::StatusOr<PipelineParts> ParseParts(const Json& json, const std::string& where) {
  const auto field = [&](const char* name) -> const Json& {
    // This value is never destroyed, because other threads may still use it while the process
    // exits.
    static const Json* const null = new Json;
    const Json* value = FindField(json, name);
    return value == nullptr ? *null : *value;
  };
  PipelineParts parts;
  QT_ASSIGN_OR_RETURN(parts.model, ParseTokenModel(field("model"), absl::StrCat(where, ": model")));
  QT_ASSIGN_OR_RETURN(parts.normalizer,
                      ParseNormalizer(field("normalizer"), absl::StrCat(where, ": normalizer")));
  QT_ASSIGN_OR_RETURN(
      parts.pre_tokenizer,
      ParsePreTokenizer(field("pre_tokenizer"), absl::StrCat(where, ": pre_tokenizer")));
  QT_ASSIGN_OR_RETURN(parts.decoder,
                      ParseDecoder(field("decoder"), absl::StrCat(where, ": decoder")));
  QT_RETURN_IF_ERROR(
      CheckTextGrowth(TextGrowth(field("normalizer")) * TextGrowth(field("pre_tokenizer")),
                      kMaxEncodingGrowth, absl::StrCat(where, ": normalizer and pre_tokenizer")));
  QT_RETURN_IF_ERROR(CheckTextGrowth(TextGrowth(field("decoder")), kMaxDecodingGrowth,
                                     absl::StrCat(where, ": decoder")));
  QT_RETURN_IF_ERROR(
      ParsePostProcessor(field("post_processor"), absl::StrCat(where, ": post_processor"), &parts));
  return parts;
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Finish(bool is_t5, bool is_bpe,
                                                        const TokenizerSettings& settings,
                                                        PipelineParts parts) {
  if (is_t5) return MakeT5(settings, std::move(parts));
  QT_RETURN_IF_ERROR(ApplySettings(settings, &parts));
  SetDefaultIds(&parts);
  parts.clean_up_spaces = settings.clean_up_spaces && (!is_bpe || settings.clean_up_spaces_of_bpe);
  return Pipeline::Make(std::move(parts));
}

}  // namespace

absl::Status ParsePostProcessor(const Json& json, const std::string& where, PipelineParts* parts) {
  if (json.is_null()) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(const std::string type, StringField(json, "type", where));
  if (type == "TemplateProcessing") return ParseTemplate(json, where, parts);
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    QT_ASSIGN_OR_RETURN(parts->trim_offsets, BoolField(json, "trim_offsets", true, where));
    QT_ASSIGN_OR_RETURN(parts->trim_add_prefix_space,
                        BoolField(json, "add_prefix_space", true, where));
  }
  if (type == "ByteLevel") return absl::OkStatus();
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    QT_ASSIGN_OR_RETURN(const int32_t first, PairId(json, "cls", where));
    QT_ASSIGN_OR_RETURN(const int32_t last, PairId(json, "sep", where));
    parts->prefix.push_back(first);
    parts->suffix.push_back(last);
    return absl::OkStatus();
  }
  if (type == "Sequence") {
    const Json* processors = FindField(json, "processors");
    if (processors == nullptr || !processors->is_array()) {
      return ExpectedField(where, "processors", "a list",
                           processors == nullptr ? Json() : *processors);
    }
    for (const Json& processor : *processors) {
      // Only one post-processor of a Sequence may add tokens around the text.
      const bool has_tokens = !parts->prefix.empty() || !parts->suffix.empty();
      const Json* inner = FindField(processor, "type");
      if (has_tokens && (inner == nullptr || *inner != "ByteLevel")) {
        return absl::UnimplementedError(
            absl::StrCat(where, ": Sequence: expected at most one template"));
      }
      QT_RETURN_IF_ERROR(ParsePostProcessor(processor, absl::StrCat(where, ": processors"), parts));
    }
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      absl::StrCat(where, ": type ", type.substr(0, 64), " is not supported"));
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseTokenizerJson(Json json,
                                                                    const std::string& where,
                                                                    TokenizerSettings settings) {
  if (!json.is_object()) return ExpectedField(where, "file", "an object", json);
  const Json* model = FindField(json, "model");
  const bool is_bpe = model != nullptr && IsBpe(*model);
  const bool is_gpt2 = is_bpe && settings.tokenizer_class == TokenizerClass::kGpt2;
  const bool is_t5 =
      model != nullptr && IsUnigram(*model) && settings.tokenizer_class == TokenizerClass::kT5;
  if (is_gpt2) {
    RebuildAsGpt2(settings.add_prefix_space, &json);
    SetGpt2Defaults(&settings);
  }
  if (is_t5) RebuildAsT5(&json);
  QT_ASSIGN_OR_RETURN(PipelineParts parts, ParseParts(json, where));
  QT_ASSIGN_OR_RETURN(const std::vector<AddedToken> added,
                      ParseAddedTokens(json, parts.model->vocabulary, where));
  if (!is_t5 && !is_gpt2) {
    for (const AddedToken& token : added) parts.added.Add(token);
  }
  if (!settings.has_added_tokens_decoder) AddNumbered(added, &settings.numbered);
  auto tokenizer = Finish(is_t5, is_bpe, settings, std::move(parts));
  if (!tokenizer.ok()) {
    return absl::Status(tokenizer.status().code(),
                        absl::StrCat(where, ": ", tokenizer.status().message()));
  }
  return tokenizer;
}

}  // namespace quintet
