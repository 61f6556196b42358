#include "models/tokenizers/settings.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "models/json.h"
#include "models/tokenizers/fields.h"

namespace quintet {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxBytes = 64 << 20;
constexpr size_t kMaxListedTokens = 100000;

absl::StatusOr<Json> ReadOptional(const std::string& directory, const char* name) {
  absl::StatusOr<Json> json = ReadJsonFile(directory + "/" + name, kMaxBytes);
  if (absl::IsNotFound(json.status())) return Json::object();
  if (json.ok() && !json->is_object()) return ExpectedField(name, "file", "an object", *json);
  return json;
}

absl::Status ReadNamed(const Json& json, const char* field, const std::string& where,
                       std::optional<AddedToken>* token) {
  const Json* value = FindField(json, field);
  if (value == nullptr) return absl::OkStatus();
  QT_ASSIGN_OR_RETURN(*token, ParseAddedToken(*value, true, absl::StrCat(where, ": ", field)));
  return absl::OkStatus();
}

// Named tokens and lists of special tokens, the same in tokenizer_config.json and
// special_tokens_map.json.
absl::Status ReadSpecialTokens(const Json& json, const std::string& where,
                               TokenizerSettings* settings) {
  QT_RETURN_IF_ERROR(ReadNamed(json, "bos_token", where, &settings->bos));
  QT_RETURN_IF_ERROR(ReadNamed(json, "eos_token", where, &settings->eos));
  QT_RETURN_IF_ERROR(ReadNamed(json, "unk_token", where, &settings->unk));
  QT_RETURN_IF_ERROR(ReadNamed(json, "pad_token", where, &settings->pad));
  for (const char* field : {"sep_token", "cls_token", "mask_token"}) {
    std::optional<AddedToken> token;
    QT_RETURN_IF_ERROR(ReadNamed(json, field, where, &token));
    if (token) settings->others.push_back(*token);
  }
  for (const char* field : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json* list = FindField(json, field);
    if (list == nullptr) continue;
    if (!list->is_array() && !list->is_object())
      return ExpectedField(where, field, "a list", *list);
    if (list->size() > kMaxListedTokens)
      return ExpectedField(where, field, "at most 100000 tokens", *list);
    for (const Json& entry : *list) {
      QT_ASSIGN_OR_RETURN(AddedToken token,
                          ParseAddedToken(entry, true, absl::StrCat(where, ": ", field)));
      settings->others.push_back(std::move(token));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> CheckedId(int64_t id, const std::string& where, const std::string& field) {
  if (id < 0 || id >= kMaxVocabulary) {
    return ExpectedField(where, field, absl::StrCat("an id in [0, ", kMaxVocabulary, ")"), id);
  }
  return static_cast<int32_t>(id);
}

absl::Status ReadConfig(const std::string& directory, TokenizerSettings* settings) {
  const std::string where = "tokenizer_config.json";
  QT_ASSIGN_OR_RETURN(const Json json, ReadOptional(directory, where.c_str()));
  QT_ASSIGN_OR_RETURN(settings->tokenizer_class, StringField(json, "tokenizer_class", "", where));
  QT_ASSIGN_OR_RETURN(settings->add_prefix_space,
                      BoolField(json, "add_prefix_space", false, where));
  QT_ASSIGN_OR_RETURN(settings->clean_up_spaces,
                      BoolField(json, "clean_up_tokenization_spaces", false, where));
  QT_ASSIGN_OR_RETURN(
      settings->clean_up_spaces_of_bpe,
      BoolField(json, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
                false, where));
  if (FindField(json, "extra_ids") != nullptr) {
    QT_ASSIGN_OR_RETURN(settings->extra_ids, IntField(json, "extra_ids", where));
    if (*settings->extra_ids < 0 || *settings->extra_ids > 10000) {
      return ExpectedField(where, "extra_ids", "a number in [0, 10000]", json["extra_ids"]);
    }
  }
  QT_RETURN_IF_ERROR(ReadSpecialTokens(json, where, settings));
  const Json* numbered = FindField(json, "added_tokens_decoder");
  if (numbered == nullptr) return absl::OkStatus();
  if (!numbered->is_object())
    return ExpectedField(where, "added_tokens_decoder", "an object", *numbered);
  for (const auto& [key, entry] : numbered->items()) {
    const std::string place = absl::StrCat(where, ": added_tokens_decoder: ", key.substr(0, 32));
    int64_t id;
    if (!absl::SimpleAtoi(key, &id)) return ExpectedField(place, "key", "an id", key);
    QT_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry, false, place));
    QT_ASSIGN_OR_RETURN(token.id, CheckedId(id, place, "key"));
    settings->numbered.push_back(std::move(token));
  }
  std::sort(settings->numbered.begin(), settings->numbered.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const std::string& directory, TokenizerSettings* settings) {
  const std::string where = "added_tokens.json";
  QT_ASSIGN_OR_RETURN(const Json json, ReadOptional(directory, where.c_str()));
  std::vector<AddedToken> tokens;
  for (const auto& [content, value] : json.items()) {
    QT_ASSIGN_OR_RETURN(const int64_t id, IntField(json, content.c_str(), where));
    AddedToken token;
    token.content = content;
    token.normalized = true;
    QT_ASSIGN_OR_RETURN(token.id, CheckedId(id, where, content.substr(0, 64)));
    const auto same = [&](const AddedToken& other) { return other.content == content; };
    // added_tokens_decoder says more about the same token.
    if (std::none_of(settings->numbered.begin(), settings->numbered.end(), same))
      tokens.push_back(std::move(token));
  }
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  settings->numbered.insert(settings->numbered.end(), tokens.begin(), tokens.end());
  return absl::OkStatus();
}

// Finds or makes the id of a special token and marks it as one.
absl::StatusOr<int32_t> PlaceSpecial(AddedToken token, PipelineParts* parts) {
  if (token.content.empty()) return -1;
  const AddedToken* added = parts->added.FindContent(token.content);
  if (added != nullptr) {
    const int32_t id = added->id;
    if (!added->special) {
      token = *added;
      token.special = true;
      token.normalized = false;
      parts->added.Add(std::move(token));
    }
    return id;
  }
  token.id = parts->model->vocabulary.Find(token.content);
  if (token.id < 0) {
    const int64_t next =
        std::max<int64_t>(parts->model->vocabulary.size(), parts->added.highest_id() + int64_t{1});
    QT_ASSIGN_OR_RETURN(token.id, CheckedId(next, "special tokens", token.content.substr(0, 64)));
  }
  const int32_t id = token.id;
  parts->added.Add(std::move(token));
  return id;
}

}  // namespace

absl::StatusOr<AddedToken> ParseAddedToken(const Json& entry, bool special,
                                           const std::string& where) {
  AddedToken token;
  token.special = special;
  if (entry.is_string()) {
    token.content = entry.get<std::string>();
  } else if (entry.is_object()) {
    QT_ASSIGN_OR_RETURN(token.content, StringField(entry, "content", where));
    QT_ASSIGN_OR_RETURN(token.special, BoolField(entry, "special", special, where));
    QT_ASSIGN_OR_RETURN(token.single_word, BoolField(entry, "single_word", false, where));
    QT_ASSIGN_OR_RETURN(token.lstrip, BoolField(entry, "lstrip", false, where));
    QT_ASSIGN_OR_RETURN(token.rstrip, BoolField(entry, "rstrip", false, where));
    QT_ASSIGN_OR_RETURN(token.normalized, BoolField(entry, "normalized", !token.special, where));
  } else {
    return ExpectedField(where, "token", "a string or an object", entry);
  }
  if (token.content.size() > kMaxPieceBytes) {
    return ExpectedField(where, "content", absl::StrCat("at most ", kMaxPieceBytes, " bytes"),
                         token.content.size());
  }
  return token;
}

absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const std::string& directory) {
  TokenizerSettings settings;
  const std::string where = "special_tokens_map.json";
  QT_ASSIGN_OR_RETURN(const Json map, ReadOptional(directory, where.c_str()));
  QT_RETURN_IF_ERROR(ReadSpecialTokens(map, where, &settings));
  QT_RETURN_IF_ERROR(ReadConfig(directory, &settings));
  QT_RETURN_IF_ERROR(ReadAddedTokens(directory, &settings));
  return settings;
}

absl::Status ApplySettings(const TokenizerSettings& settings, PipelineParts* parts) {
  for (const AddedToken& token : settings.numbered) {
    const std::string& known = parts->model->vocabulary.Piece(token.id);
    const int32_t found = parts->model->vocabulary.Find(token.content);
    if ((!known.empty() && known != token.content) || (found >= 0 && found != token.id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("added token ", token.id, " \"", token.content.substr(0, 64),
                       "\": expected the vocabulary to agree, got \"", known.substr(0, 64),
                       "\" there and id ", found, " for its spelling"));
    }
    const AddedToken* added = parts->added.FindContent(token.content);
    AddedToken replacement = token;
    replacement.special |= added != nullptr && added->special;
    parts->added.Add(std::move(replacement));
  }
  const auto place = [&](const std::optional<AddedToken>& token, int32_t* id) -> absl::Status {
    if (!token) return absl::OkStatus();
    QT_ASSIGN_OR_RETURN(*id, PlaceSpecial(*token, parts));
    return absl::OkStatus();
  };
  QT_RETURN_IF_ERROR(place(settings.bos, &parts->ids.bos));
  QT_RETURN_IF_ERROR(place(settings.eos, &parts->ids.eos));
  QT_RETURN_IF_ERROR(place(settings.unk, &parts->ids.unk));
  QT_RETURN_IF_ERROR(place(settings.pad, &parts->ids.pad));
  for (const AddedToken& token : settings.others) {
    if (absl::StatusOr<int32_t> id = PlaceSpecial(token, parts); !id.ok()) return id.status();
  }
  return absl::OkStatus();
}

}  // namespace quintet
