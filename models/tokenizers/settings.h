// The small files next to a tokenizer: tokenizer_config.json, special_tokens_map.json,
// added_tokens.json, and config.json where it names the tokenizer's class. Read by the rules of
// transformers 5 (models/README.md).
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

// The class of transformers that builds the tokenizer.
enum class TokenizerClass : uint8_t {
  kTokenizersBackend,  // tokenizer.json as saved; also stands for classes that are not listed here
  kT5,                 // T5Tokenizer
  kGpt2,               // GPT2Tokenizer
  kByT5,               // ByT5Tokenizer
};

// The class that AutoTokenizer chooses from config.json's model_type and the class that
// tokenizer_config.json or config.json declares; both may be empty.
TokenizerClass ChooseTokenizerClass(std::string_view model_type, std::string_view declared);

struct TokenizerSettings {
  TokenizerClass tokenizer_class = TokenizerClass::kTokenizersBackend;
  // Named special tokens, ids -1. nullopt: not in the files, so the class's default applies. Empty
  // content: null in the files, so there is none.
  std::optional<AddedToken> bos, eos, unk, sep, pad, cls, mask;
  // Special tokens under other names: *_token fields and named extra_special_tokens; ids -1.
  std::vector<AddedToken> model_specific;
  // extra_special_tokens, and additional_special_tokens where they do not count as such; ids -1.
  // nullopt: the field is absent.
  std::optional<std::vector<AddedToken>> extra, additional;
  // added_tokens_decoder, by id. Where it is absent: added_tokens.json, to which the added_tokens
  // of tokenizer.json belong too.
  std::vector<AddedToken> numbered;
  bool has_added_tokens_decoder = false;
  std::optional<int64_t> extra_ids;  // number of sentinels of T5 and ByT5
  bool add_prefix_space = false, add_bos = false, add_eos = false, split_special_tokens = false;
  bool clean_up_spaces = false, clean_up_spaces_of_bpe = false;
};

// Missing files are fine. INVALID_ARGUMENT with file, place, expected and got.
absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const std::string& directory);

// One entry of an added_tokens list or of added_tokens_decoder: an object with "content" and flags,
// or just the string. Special tokens are not normalised unless the entry says so.
absl::StatusOr<AddedToken> ParseAddedToken(const nlohmann::json& entry, bool special,
                                           const std::string& where);

// A special token that the files do not list; its id is not known yet (-1).
AddedToken SpecialToken(std::string content);

// Adds the settings' tokens to the parts, whose model is set: numbered ones, then named, then
// extra ones that are not there yet, with new ids after the vocabulary where it lacks them. Sets
// parts->ids. INVALID_ARGUMENT when the vocabulary contradicts the id of a numbered token.
absl::Status ApplySettings(const TokenizerSettings& settings, PipelineParts* parts);

}  // namespace quintet
