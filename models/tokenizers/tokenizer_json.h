// Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizer.h"
#include "models/tokenizers/settings.h"
#include "nlohmann/json.hpp"

namespace quintet {

// INVALID_ARGUMENT with `where`, place, expected and got; UNIMPLEMENTED for parts that these model
// families do not use. T5Tokenizer and GPT2Tokenizer take over little more than the vocabulary
// (t5.h, gpt2.h); any other class, or a model that is not of theirs, takes the file as it is.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseTokenizerJson(nlohmann::json json,
                                                                    const std::string& where,
                                                                    TokenizerSettings settings);

// Its parts; null gives a null pointer.
absl::StatusOr<NormalizerPtr> ParseNormalizer(const nlohmann::json& json, const std::string& where);
absl::StatusOr<PreTokenizerPtr> ParsePreTokenizer(const nlohmann::json& json,
                                                  const std::string& where);
absl::StatusOr<DecoderPtr> ParseDecoder(const nlohmann::json& json, const std::string& where);
absl::StatusOr<std::unique_ptr<const TokenModel>> ParseTokenModel(const nlohmann::json& json,
                                                                  const std::string& where);
absl::Status ParsePostProcessor(const nlohmann::json& json, const std::string& where,
                                PipelineParts* parts);

// {"String": ..} or {"Regex": ..}.
absl::StatusOr<Pattern> ParsePattern(const nlohmann::json& object, const std::string& where);

// Byte-level BPE's vocab.json and merges.txt, as GPT-2 has them.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseVocabAndMerges(
    const nlohmann::json& vocab, std::string_view merges, const TokenizerSettings& settings);

}  // namespace quintet
