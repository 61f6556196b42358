// The small configuration files of a tokenizer: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, and config.json for the name of the tokenizer's class. They are read by the
// rules of transformers 5 (models/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/pipeline.h"
#include "nlohmann/json.hpp"

namespace quintet {

// The transformers class whose code decides how the tokenizer is built from its files.
enum class TokenizerClass : uint8_t {
  kTokenizersBackend,  // tokenizer.json as saved; also used for all classes not listed here
  kT5,                 // T5Tokenizer
  kGpt2,               // GPT2Tokenizer
  kByT5,               // ByT5Tokenizer
};

// Returns the tokenizer class that transformers' AutoTokenizer chooses. `model_type` is the field
// of config.json; `declared` is the tokenizer_class of tokenizer_config.json or config.json. Both
// may be empty.
TokenizerClass ChooseTokenizerClass(std::string_view model_type, std::string_view declared);

struct TokenizerSettings {
  TokenizerClass tokenizer_class = TokenizerClass::kTokenizersBackend;
  // Special tokens that have a field of their own (bos_token, ...); their ids are -1, not yet
  // known. nullopt: not in the files, so the class's default applies. Empty content: null in the
  // files, so the tokenizer has no such token.
  std::optional<AddedToken> bos, eos, unk, sep, pad, cls, mask;
  // Special tokens under other names: the other *_token fields, and the entries of
  // extra_special_tokens if its value is an object. Their ids are -1 (not yet known).
  std::vector<AddedToken> model_specific;
  // Two lists of further special tokens, with id -1 (not yet known); nullopt if no field sets the
  // list. tokenizer_config.json sets `extra` from extra_special_tokens and `additional` from
  // additional_special_tokens. If its extra_special_tokens is empty or absent, it instead sets
  // `extra` from additional_special_tokens and does not set `additional`. special_tokens_map.json,
  // if it is read, replaces `additional` by its additional_special_tokens and appends its
  // extra_special_tokens to `extra`.
  std::optional<std::vector<AddedToken>> extra, additional;
  // Added tokens whose ids are in the files, sorted by id. They come from added_tokens_decoder. If
  // there is no such field, they come from added_tokens.json and from added_tokens in
  // tokenizer.json.
  std::vector<AddedToken> numbered;
  bool has_added_tokens_decoder = false;
  std::optional<int64_t> extra_ids;  // number of sentinels (<extra_id_N>) of T5 and ByT5
  bool add_prefix_space = false, add_bos = false, add_eos = false, split_special_tokens = false;
  bool clean_up_spaces = false, clean_up_spaces_of_bpe = false;
  // True for UMT5: spiece.model is read by SentencePiece's own rules instead of T5Tokenizer's,
  // because transformers has no class that reads the file for UMT5.
  bool sentencepiece_rules = false;
};

// Returns the settings of a tokenizer without configuration files, for a model of this type.
TokenizerSettings DefaultTokenizerSettings(std::string_view model_type);

// Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json and config.json of
// `directory`. Missing files are not an error. Returns INVALID_ARGUMENT for bad contents; the
// message names the file and the place in it, and says what was expected and what was found.
// `model_type` is used if there is no config.json.
absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const std::string& directory,
                                                        std::string_view model_type = "");

// Parses one entry of an added_tokens list or of added_tokens_decoder: either an object with
// "content" and flags, or a string. `special` is the default of the entry's "special" flag.
// "normalized" defaults to the opposite of "special" in objects and to false in strings.
absl::StatusOr<AddedToken> ParseAddedToken(const nlohmann::json& entry, bool special,
                                           const std::string& where);

// A special token with default flags and an unknown id (-1).
AddedToken SpecialToken(std::string content);

// Adds the settings' tokens to parts->added, in this order: first `numbered`; then the tokens that
// have a field of their own (bos, ..., mask) and model_specific; then `extra`, or `additional` if
// `extra` is nullopt. A token that is not in `numbered` is skipped if parts->added, which by then
// includes `numbered`, has a token of equal content. Otherwise its id is the vocabulary's id of its
// content or, if the vocabulary lacks it, the next free id; if several such tokens have the same
// content, the last one wins. Sets parts->ids. parts->model must be set. Returns INVALID_ARGUMENT
// for a numbered token if the vocabulary has another id for its content, or another content for its
// id.
absl::Status ApplySettings(const TokenizerSettings& settings, PipelineParts* parts);

}  // namespace quintet
