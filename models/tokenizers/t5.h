// transformers' T5Tokenizer (5.x). It takes the pieces, their scores and the normalisation rules
// from tokenizer.json or spiece.model and fixes the rest: a unigram model whose unknown token has
// id 2, words that begin with U+2581, eos after every text. It ignores the model type, the byte
// fallback and the space settings of the files.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/tokenizers/pipeline.h"
#include "models/tokenizers/settings.h"
#include "nlohmann/json.hpp"

namespace quintet {

inline constexpr int32_t kT5UnknownId = 2;

// Sentinels <extra_id_0> .. of a T5 tokenizer.
int64_t T5Sentinels(const TokenizerSettings& settings);

// True when the "model" of a tokenizer.json is one that T5Tokenizer can take over.
bool IsUnigram(const nlohmann::json& model);
// Replaces the parts of a tokenizer.json with a unigram model that T5Tokenizer does not take over.
void RebuildAsT5(nlohmann::json* tokenizer);

// Pre-tokenizer and decoder, for pieces that do not come from a tokenizer.json.
PreTokenizerPtr MakeT5PreTokenizer();
DecoderPtr MakeT5Decoder();

// Adds the special tokens and the eos after each text to parts whose model is set, and makes the
// tokenizer. INVALID_ARGUMENT as ApplySettings and Pipeline::Make, without the file's name.
absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeT5(TokenizerSettings settings,
                                                        PipelineParts parts);

}  // namespace quintet
