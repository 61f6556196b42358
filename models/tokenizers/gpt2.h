// transformers' GPT2Tokenizer (5.x). It takes the vocabulary, the merges and the post-processor
// from tokenizer.json, or from vocab.json and merges.txt, and fixes the rest: no normalisation,
// GPT-2's pattern, byte-level pieces, and add_prefix_space as tokenizer_config.json says.
#pragma once

#include "models/tokenizers/settings.h"
#include "nlohmann/json.hpp"

namespace quintet {

// True when the "model" of a tokenizer.json is one that GPT2Tokenizer can take over.
bool IsBpe(const nlohmann::json& model);
// Replaces the parts of a tokenizer.json with a BPE model that GPT2Tokenizer does not take over.
void RebuildAsGpt2(bool add_prefix_space, nlohmann::json* tokenizer);
// <|endoftext|> for bos, eos and unk where the files do not name them.
void SetGpt2Defaults(TokenizerSettings* settings);

}  // namespace quintet
