#include "models/tokenizers/settings.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "models/checkpoint/json.h"
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

constexpr std::pair<const char*, std::optional<AddedToken> TokenizerSettings::*> kNamed[] = {
    {"bos_token", &TokenizerSettings::bos},  {"eos_token", &TokenizerSettings::eos},
    {"unk_token", &TokenizerSettings::unk},  {"sep_token", &TokenizerSettings::sep},
    {"pad_token", &TokenizerSettings::pad},  {"cls_token", &TokenizerSettings::cls},
    {"mask_token", &TokenizerSettings::mask}};

bool IsNamed(std::string_view field) {
  return std::any_of(std::begin(kNamed), std::end(kNamed),
                     [&](const auto& named) { return field == named.first; });
}

// Reads the special tokens that have a field of their own, such as bos_token (kNamed lists these
// fields), and all other *_token fields whose value is a string or an object with "content".
absl::Status ReadNamed(const Json& json, const std::string& where, TokenizerSettings* settings) {
  for (const auto& [field, member] : kNamed) {
    const auto value = json.find(field);
    if (value == json.end()) continue;
    if (value->is_null()) {
      settings->*member = AddedToken();
      continue;
    }
    QT_ASSIGN_OR_RETURN(settings->*member,
                        ParseAddedToken(*value, true, absl::StrCat(where, ": ", field)));
  }
  for (const auto& [field, value] : json.items()) {
    if (IsNamed(field) || !absl::EndsWith(field, "_token")) continue;
    if (!value.is_string() && FindField(value, "content") == nullptr) continue;
    QT_ASSIGN_OR_RETURN(
        AddedToken token,
        ParseAddedToken(value, true, absl::StrCat(where, ": ", field.substr(0, 64))));
    settings->model_specific.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AddedToken>> ReadTokenList(const Json& list, bool special,
                                                      const std::string& where) {
  if (!list.is_array() && !list.is_object()) return ExpectedField(where, "tokens", "a list", list);
  if (list.size() > kMaxListedTokens) {
    return ExpectedField(where, "tokens", absl::StrCat("at most ", kMaxListedTokens), list);
  }
  std::vector<AddedToken> tokens;
  for (const Json& entry : list) {
    QT_ASSIGN_OR_RETURN(AddedToken token,
                        ParseAddedToken(entry, special || entry.is_string(), where));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Reads a list of special tokens into *target. If `value` is an object (name to token) instead of a
// list, adds its tokens to settings->model_specific.
absl::Status ReadExtra(const Json& value, const std::string& where, TokenizerSettings* settings,
                       std::optional<std::vector<AddedToken>>* target) {
  if (value.is_null()) {
    target->emplace();
    return absl::OkStatus();
  }
  QT_ASSIGN_OR_RETURN(std::vector<AddedToken> tokens,
                      ReadTokenList(value, value.is_object(), where));
  if (value.is_object()) {
    std::move(tokens.begin(), tokens.end(), std::back_inserter(settings->model_specific));
  } else {
    *target = std::move(tokens);
  }
  return absl::OkStatus();
}

// Reads the fields extra_special_tokens and additional_special_tokens. additional_special_tokens is
// the older name: its value is used for extra_special_tokens if that field is empty or absent.
absl::Status ReadExtras(const Json& json, const std::string& where, TokenizerSettings* settings) {
  const auto extra = json.find("extra_special_tokens");
  const auto additional = json.find("additional_special_tokens");
  const bool has_extra = extra != json.end() && !extra->empty();
  if (additional != json.end()) {
    QT_RETURN_IF_ERROR(ReadExtra(*additional, absl::StrCat(where, ": additional_special_tokens"),
                                 settings, has_extra ? &settings->additional : &settings->extra));
  }
  if (extra != json.end() && (has_extra || additional == json.end())) {
    QT_RETURN_IF_ERROR(ReadExtra(*extra, absl::StrCat(where, ": extra_special_tokens"), settings,
                                 &settings->extra));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> CheckedId(int64_t id, const std::string& where, const std::string& field) {
  if (id < 0 || id >= kMaxVocabulary) {
    return ExpectedField(where, field, absl::StrCat("an id in [0, ", kMaxVocabulary, ")"), id);
  }
  return static_cast<int32_t>(id);
}

absl::Status ReadAddedTokensDecoder(const Json& json, const std::string& where,
                                    TokenizerSettings* settings) {
  if (!json.is_object()) return ExpectedField(where, "added_tokens_decoder", "an object", json);
  for (const auto& [key, entry] : json.items()) {
    const std::string place = absl::StrCat(where, ": added_tokens_decoder: ", key.substr(0, 32));
    int64_t id;
    if (!absl::SimpleAtoi(key, &id)) return ExpectedField(place, "key", "an id", key);
    QT_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(entry, false, place));
    QT_ASSIGN_OR_RETURN(token.id, CheckedId(id, place, "key"));
    settings->numbered.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadConfig(const Json& json, const std::string& where, TokenizerSettings* settings) {
  const std::tuple<const char*, bool*> flags[] = {
      {"add_prefix_space", &settings->add_prefix_space},
      {"add_bos_token", &settings->add_bos},
      {"add_eos_token", &settings->add_eos},
      {"split_special_tokens", &settings->split_special_tokens},
      {"clean_up_tokenization_spaces", &settings->clean_up_spaces},
      {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
       &settings->clean_up_spaces_of_bpe}};
  for (const auto& [field, flag] : flags) {
    QT_ASSIGN_OR_RETURN(*flag, BoolField(json, field, false, where));
  }
  if (FindField(json, "extra_ids") != nullptr) {
    QT_ASSIGN_OR_RETURN(settings->extra_ids, IntField(json, "extra_ids", where));
    if (*settings->extra_ids < 0 || *settings->extra_ids > 10000) {
      return ExpectedField(where, "extra_ids", "a number in [0, 10000]", json["extra_ids"]);
    }
  }
  QT_RETURN_IF_ERROR(ReadNamed(json, where, settings));
  QT_RETURN_IF_ERROR(ReadExtras(json, where, settings));
  const Json* decoder = FindField(json, "added_tokens_decoder");
  settings->has_added_tokens_decoder = decoder != nullptr;
  return decoder == nullptr ? absl::OkStatus() : ReadAddedTokensDecoder(*decoder, where, settings);
}

// Reads special_tokens_map.json. Its named tokens and its additional_special_tokens replace those
// of tokenizer_config.json; its extra_special_tokens are appended to the extra_special_tokens of
// tokenizer_config.json. Only called if tokenizer_config.json has no added_tokens_decoder.
absl::Status ReadSpecialTokensMap(const Json& json, TokenizerSettings* settings) {
  const std::string where = "special_tokens_map.json";
  QT_RETURN_IF_ERROR(ReadNamed(json, where, settings));
  const auto additional = json.find("additional_special_tokens");
  if (additional != json.end()) {
    QT_RETURN_IF_ERROR(ReadExtra(*additional, absl::StrCat(where, ": additional_special_tokens"),
                                 settings, &settings->additional));
  }
  const Json* extra = FindField(json, "extra_special_tokens");
  if (extra == nullptr) return absl::OkStatus();
  std::optional<std::vector<AddedToken>> tokens;
  QT_RETURN_IF_ERROR(
      ReadExtra(*extra, absl::StrCat(where, ": extra_special_tokens"), settings, &tokens));
  if (!tokens) return absl::OkStatus();
  if (!settings->extra) settings->extra.emplace();
  std::move(tokens->begin(), tokens->end(), std::back_inserter(*settings->extra));
  return absl::OkStatus();
}

// Reads added_tokens.json ({content: id}). Only called if tokenizer_config.json has no
// added_tokens_decoder.
absl::Status ReadAddedTokens(const Json& json, TokenizerSettings* settings) {
  const std::string where = "added_tokens.json";
  std::unordered_set<std::string> special;
  for (const auto& [field, member] : kNamed) {
    if (settings->*member) special.insert((settings->*member)->content);
  }
  if (settings->extra) {
    for (const AddedToken& token : *settings->extra) special.insert(token.content);
  }
  for (const auto& [content, value] : json.items()) {
    QT_ASSIGN_OR_RETURN(const int64_t id, IntField(json, content.c_str(), where));
    AddedToken token;
    token.content = content;
    token.special = special.contains(content);
    token.normalized = !token.special;
    QT_ASSIGN_OR_RETURN(token.id, CheckedId(id, where, content.substr(0, 64)));
    settings->numbered.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Returns a string field of config.json. Empty if the field is missing or not a string;
// ReadModelConfig reports the wrong type as an error.
std::string NameField(const Json& json, const char* field) {
  const Json* value = FindField(json, field);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// Returns the special tokens that have a field of their own (bos_token to mask_token; kNamed lists
// these fields), then settings.model_specific. This is the order in which they get ids.
std::vector<AddedToken> NamedTokens(const TokenizerSettings& settings) {
  std::vector<AddedToken> tokens;
  for (const auto& [field, member] : kNamed) {
    if (settings.*member) tokens.push_back(*(settings.*member));
  }
  tokens.insert(tokens.end(), settings.model_specific.begin(), settings.model_specific.end());
  for (AddedToken& token : tokens) token.special = true;
  return tokens;
}

absl::Status AddNumbered(AddedToken token, const TokenizerSettings& settings,
                         PipelineParts* parts) {
  const std::string& known = parts->model->vocabulary.Piece(token.id);
  const int32_t found = parts->model->vocabulary.Find(token.content);
  if ((!known.empty() && known != token.content) || (found >= 0 && found != token.id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("added token ", token.id, " \"", token.content.substr(0, 64),
                     "\": expected the vocabulary to agree, got \"", known.substr(0, 64),
                     "\" for this id and id ", found, " for this spelling"));
  }
  const AddedToken* added = parts->added.FindContent(token.content);
  const std::vector<AddedToken> named = NamedTokens(settings);
  token.special |= added != nullptr && added->special;
  token.special |= std::any_of(named.begin(), named.end(), [&](const AddedToken& other) {
    return other.content == token.content;
  });
  parts->added.Add(std::move(token));
  return absl::OkStatus();
}

// Adds a token for which the files give only the content. The token gets the id of the added token
// with this content, else the id of the vocabulary's piece with this content, else the next free
// id.
absl::Status AddSpelled(AddedToken token, PipelineParts* parts) {
  const AddedToken* added = parts->added.FindContent(token.content);
  token.special |= added != nullptr && added->special;
  token.id = added != nullptr ? added->id : parts->model->vocabulary.Find(token.content);
  if (token.id < 0) {
    const int64_t next =
        std::max<int64_t>(parts->model->vocabulary.size(), parts->added.highest_id() + int64_t{1});
    QT_ASSIGN_OR_RETURN(token.id, CheckedId(next, "special tokens", token.content.substr(0, 64)));
  }
  parts->added.Add(std::move(token));
  return absl::OkStatus();
}

}  // namespace

TokenizerClass ChooseTokenizerClass(std::string_view model_type, std::string_view declared) {
  static constexpr std::pair<std::string_view, TokenizerClass> kClasses[] = {
      {"T5Tokenizer", TokenizerClass::kT5},
      {"GPT2Tokenizer", TokenizerClass::kGpt2},
      {"ByT5Tokenizer", TokenizerClass::kByT5}};
  // For UMT5, tokenizer.json alone defines the tokenizer, even if the files declare a class.
  if (model_type == "umt5") return TokenizerClass::kTokenizersBackend;
  if (declared.ends_with("Fast")) declared.remove_suffix(4);
  for (const auto& [name, tokenizer_class] : kClasses) {
    if (declared == name) return tokenizer_class;
  }
  if (!declared.empty()) return TokenizerClass::kTokenizersBackend;
  if (model_type == "t5" || model_type == "mt5") return TokenizerClass::kT5;
  if (model_type == "gpt2") return TokenizerClass::kGpt2;
  return TokenizerClass::kTokenizersBackend;
}

AddedToken SpecialToken(std::string content) {
  AddedToken token;
  token.content = std::move(content);
  token.special = true;
  return token;
}

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

TokenizerSettings DefaultTokenizerSettings(std::string_view model_type) {
  TokenizerSettings settings;
  settings.tokenizer_class = ChooseTokenizerClass(model_type, "");
  settings.sentencepiece_rules = model_type == "umt5";
  return settings;
}

absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const std::string& directory,
                                                        std::string_view model_type) {
  TokenizerSettings settings;
  const std::string where = "tokenizer_config.json";
  QT_ASSIGN_OR_RETURN(const Json model, ReadOptional(directory, "config.json"));
  QT_ASSIGN_OR_RETURN(const Json config, ReadOptional(directory, where.c_str()));
  QT_ASSIGN_OR_RETURN(std::string declared, StringField(config, "tokenizer_class", "", where));
  if (declared.empty()) declared = NameField(model, "tokenizer_class");
  std::string type = NameField(model, "model_type");
  if (model.empty()) type = model_type;
  settings.tokenizer_class = ChooseTokenizerClass(type, declared);
  settings.sentencepiece_rules = type == "umt5";
  QT_RETURN_IF_ERROR(ReadConfig(config, where, &settings));
  if (!settings.has_added_tokens_decoder) {
    QT_ASSIGN_OR_RETURN(const Json map, ReadOptional(directory, "special_tokens_map.json"));
    QT_RETURN_IF_ERROR(ReadSpecialTokensMap(map, &settings));
    QT_ASSIGN_OR_RETURN(const Json added, ReadOptional(directory, "added_tokens.json"));
    QT_RETURN_IF_ERROR(ReadAddedTokens(added, &settings));
  }
  std::sort(settings.numbered.begin(), settings.numbered.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return settings;
}

absl::Status ApplySettings(const TokenizerSettings& settings, PipelineParts* parts) {
  for (const AddedToken& token : settings.numbered) {
    QT_RETURN_IF_ERROR(AddNumbered(token, settings, parts));
  }
  std::vector<AddedToken> tokens = NamedTokens(settings);
  const auto& extra = settings.extra ? settings.extra : settings.additional;
  if (extra) tokens.insert(tokens.end(), extra->begin(), extra->end());
  std::erase_if(tokens, [&](const AddedToken& token) {
    return token.content.empty() || parts->added.FindContent(token.content) != nullptr;
  });
  // AddedTokens::Add replaces an earlier token with the same content; hence of several equal tokens
  // in this list the last one wins.
  for (AddedToken& token : tokens) QT_RETURN_IF_ERROR(AddSpelled(std::move(token), parts));
  const auto id = [&](const std::optional<AddedToken>& token) {
    const AddedToken* added = token ? parts->added.FindContent(token->content) : nullptr;
    return added == nullptr ? -1 : added->id;
  };
  parts->ids = {id(settings.eos), id(settings.pad), id(settings.unk), id(settings.bos)};
  if (settings.split_special_tokens) parts->added.SplitSpecialTokens();
  return absl::OkStatus();
}

}  // namespace quintet
