// The tokenizer that transformers 5.x calls T5Tokenizer. Its pieces, their scores and the
// normalization rules come from tokenizer.json or spiece.model. Everything else is fixed: a unigram
// model whose unknown token has id 2, words that begin with U+2581, and eos after every text. The
// files' settings for model type, byte fallback and spaces are ignored.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "models/tokenizers/pipeline.h"
#include "models/tokenizers/settings.h"
#include "nlohmann/json.hpp"

namespace quintet {

inline constexpr int32_t kT5UnknownId = 2;
// U+2581, which stands for a space: pieces that begin a word begin with it.
inline constexpr char kWordStart[] = "\xE2\x96\x81";

// Number of sentinels <extra_id_0>, <extra_id_1>, ... of a T5 tokenizer.
int64_t T5Sentinels(const TokenizerSettings& settings);

// True if the "model" of a tokenizer.json is unigram, the only kind that T5Tokenizer can use.
bool IsUnigram(const nlohmann::json& model);
// Changes a tokenizer.json with a unigram model as T5Tokenizer does: replaces the unknown id, byte
// fallback, normalizer steps except Precompiled, pre-tokenizer, decoder and post-processor of the
// file by those of T5Tokenizer.
void RebuildAsT5(nlohmann::json* tokenizer);

// T5's pre-tokenizer and decoder, for pieces read from spiece.model.
PreTokenizerPtr MakeT5PreTokenizer();
DecoderPtr MakeT5Decoder();

// Makes the tokenizer from `parts`; parts.model must be set. The special tokens of `settings` are
// part of the tokenizer's vocabulary. The tokenizer appends eos to each text. Returns
// INVALID_ARGUMENT (the message does not name the file) if ApplySettings or Pipeline::Make fails.
absl::StatusOr<std::unique_ptr<const Tokenizer>> MakeT5(TokenizerSettings settings,
                                                        PipelineParts parts);

}  // namespace quintet
