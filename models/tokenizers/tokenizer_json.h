// Reads Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizers/settings.h"
#include "models/tokenizers/tokenizer.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Makes the tokenizer of a whole file. INVALID_ARGUMENT with `where`, place, expected and got;
// UNIMPLEMENTED for parts that the supported model families do not use. T5Tokenizer and
// GPT2Tokenizer use little more than the vocabulary (t5.h, gpt2.h). Any other class, and a model of
// another type, uses the file as saved.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseTokenizerJson(nlohmann::json json,
                                                                    const std::string& where,
                                                                    TokenizerSettings settings);

// Readers of the file's parts. A null field gives a null pointer.
absl::StatusOr<NormalizerPtr> ParseNormalizer(const nlohmann::json& json, const std::string& where);
absl::StatusOr<PreTokenizerPtr> ParsePreTokenizer(const nlohmann::json& json,
                                                  const std::string& where);
absl::StatusOr<DecoderPtr> ParseDecoder(const nlohmann::json& json, const std::string& where);
absl::StatusOr<std::unique_ptr<const TokenModel>> ParseTokenModel(const nlohmann::json& json,
                                                                  const std::string& where);
absl::Status ParsePostProcessor(const nlohmann::json& json, const std::string& where,
                                PipelineParts* parts);

// Parses the "pattern" field: {"String": ..} or {"Regex": ..}.
absl::StatusOr<Pattern> ParsePattern(const nlohmann::json& object, const std::string& where);

// Makes a tokenizer from byte-level BPE's vocab.json and merges.txt, GPT-2's original format.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseVocabAndMerges(
    const nlohmann::json& vocab, std::string_view merges, const TokenizerSettings& settings);

}  // namespace quintet
