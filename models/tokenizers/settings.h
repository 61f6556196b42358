// What the small files beside a tokenizer say: tokenizer_config.json, special_tokens_map.json and
// added_tokens.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "models/tokenizers/added_tokens.h"
#include "models/tokenizers/pipeline.h"
#include "nlohmann/json.hpp"

namespace quintet {

struct TokenizerSettings {
  std::string tokenizer_class;  // empty when not said
  // Named tokens; their ids are not known here (-1).
  std::optional<AddedToken> bos, eos, unk, pad;
  std::vector<AddedToken> others;    // sep, cls, mask and additional special tokens; ids -1
  std::vector<AddedToken> numbered;  // added_tokens_decoder and added_tokens.json, with their ids
  std::optional<int64_t> extra_ids;  // number of sentinels of the T5 family
  bool add_prefix_space = false, clean_up_spaces = false, clean_up_spaces_of_bpe = false;
};

// Missing files are fine. INVALID_ARGUMENT with file, place, expected and got.
absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(const std::string& directory);

// One entry of an added_tokens list or of added_tokens_decoder: an object with "content" and flags,
// or just the string. Special tokens are not normalised unless the entry says so.
absl::StatusOr<AddedToken> ParseAddedToken(const nlohmann::json& entry, bool special,
                                           const std::string& where);

// Adds the settings' tokens to the parts (whose model is set), giving new ids behind the vocabulary
// to unknown special tokens, and sets parts->ids.
absl::Status ApplySettings(const TokenizerSettings& settings, PipelineParts* parts);

}  // namespace quintet
