// Loads the tokenizer that FindTokenizer has found: a directory, a tokenizer file, or a weight file
// that contains a tokenizer. A GGUF file has it in its tokenizer.ggml keys, a text encoder in one
// safetensors file has it in the tensor spiece_model.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

// Loads the tokenizer at `path`: a directory (Tokenizer::Load), tokenizer.json, a SentencePiece
// model, or a weight file. `model_type` (the model's) is used for files and for directories without
// config.json. Returns the errors of Tokenizer::Load and EmbeddedSentencePiece.
absl::StatusOr<std::unique_ptr<const Tokenizer>> LoadTokenizer(const std::string& path,
                                                               std::string_view model_type);

// Returns the tokenizer of a weight file as the content of a SentencePiece file (spiece.model).
// Returns NOT_FOUND if the file has no tokenizer or, in GGUF, one of another kind than T5's unigram
// model. Returns INVALID_ARGUMENT if it is damaged.
absl::StatusOr<std::string> EmbeddedSentencePiece(const std::string& file);

}  // namespace quintet
