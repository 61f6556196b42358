// transformers' GPT2Tokenizer (5.x). It takes the vocabulary, the merges and the post-processor
// from tokenizer.json, or from vocab.json and merges.txt. Everything else is fixed: no
// normalization, GPT-2's pattern, byte-level pieces, and add_prefix_space from
// tokenizer_config.json.
#pragma once

#include "models/tokenizers/settings.h"
#include "nlohmann/json.hpp"

namespace quintet {

// True if the "model" of a tokenizer.json is BPE, which GPT2Tokenizer can use.
bool IsBpe(const nlohmann::json& model);
// In a tokenizer.json with a BPE model, replaces the parts that GPT2Tokenizer ignores (normalizer,
// pre-tokenizer, decoder) by its own.
void RebuildAsGpt2(bool add_prefix_space, nlohmann::json* tokenizer);
// Sets bos, eos and unk to <|endoftext|> if the files do not name them.
void SetGpt2Defaults(TokenizerSettings* settings);

}  // namespace quintet
