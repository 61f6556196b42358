// The tokenizer that transformers 5.x calls GPT2Tokenizer. Its vocabulary, merges and
// post-processor come from tokenizer.json, or from vocab.json and merges.txt; add_prefix_space
// comes from tokenizer_config.json. Everything else is fixed: no normalization, GPT-2's pattern,
// byte-level pieces.
#pragma once

#include "models/tokenizers/settings.h"
#include "nlohmann/json.hpp"

namespace quintet {

// True if the "model" of a tokenizer.json is BPE, the only kind that GPT2Tokenizer can use.
bool IsBpe(const nlohmann::json& model);
// Changes a tokenizer.json with a BPE model as GPT2Tokenizer does: replaces the file's normalizer,
// pre-tokenizer and decoder by those of GPT2Tokenizer.
void RebuildAsGpt2(bool add_prefix_space, nlohmann::json* tokenizer);
// Sets bos, eos and unk to <|endoftext|>, except those that the files name.
void SetGpt2Defaults(TokenizerSettings* settings);

}  // namespace quintet
