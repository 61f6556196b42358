// Reads Hugging Face's tokenizer.json.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/tokenizers/settings.h"
#include "models/tokenizers/tokenizer.h"
#include "nlohmann/json.hpp"

namespace quintet {

// Makes the tokenizer from a whole tokenizer.json. Returns INVALID_ARGUMENT for bad contents; the
// message names the file (`where`) and the place in it, and says what was expected and what was
// found. Returns UNIMPLEMENTED for parts that the supported model families do not use. If
// settings.tokenizer_class is kT5 and the file's model is unigram, or the class is kGpt2 and the
// model is BPE, little more than the file's vocabulary is used (t5.h, gpt2.h). Otherwise every part
// of the file is used.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseTokenizerJson(nlohmann::json json,
                                                                    const std::string& where,
                                                                    TokenizerSettings settings);

// Each of these functions parses one part of tokenizer.json. If the part is null, ParseNormalizer,
// ParsePreTokenizer and ParseDecoder return a null pointer, and ParsePostProcessor does nothing.
absl::StatusOr<NormalizerPtr> ParseNormalizer(const nlohmann::json& json, const std::string& where);
absl::StatusOr<PreTokenizerPtr> ParsePreTokenizer(const nlohmann::json& json,
                                                  const std::string& where);
absl::StatusOr<DecoderPtr> ParseDecoder(const nlohmann::json& json, const std::string& where);
absl::StatusOr<std::unique_ptr<const TokenModel>> ParseTokenModel(const nlohmann::json& json,
                                                                  const std::string& where);
absl::Status ParsePostProcessor(const nlohmann::json& json, const std::string& where,
                                PipelineParts* parts);

// Parses the field "pattern" of an object: {"String": ..} or {"Regex": ..}.
absl::StatusOr<Pattern> ParsePattern(const nlohmann::json& object, const std::string& where);

// Makes a tokenizer from vocab.json and merges.txt, GPT-2's original format of byte-level BPE.
absl::StatusOr<std::unique_ptr<const Tokenizer>> ParseVocabAndMerges(
    const nlohmann::json& vocab, std::string_view merges, const TokenizerSettings& settings);

}  // namespace quintet
