// Directories of diffusers pipelines: model_index.json names the components, each of which has a
// folder, e.g. "text_encoder_2": ["transformers", "T5EncoderModel"].
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace quintet {

// If `directory` has a model_index.json and no config.json, returns the folder of its T5 text
// encoder (class T5EncoderModel, UMT5EncoderModel, ...). Returns INVALID_ARGUMENT if the file is
// damaged or names no or several T5 text encoders; the message lists the folders. Returns other
// directories unchanged.
absl::StatusOr<std::string> FindTextEncoder(const std::string& directory);

// If `model` is a folder text_encoder* of a pipeline without tokenizer files of its own, returns
// the folder of the tokenizer that belongs to it (tokenizer_2 for text_encoder_2), provided that
// model_index.json names that tokenizer. In all other cases returns `model`.
std::string TokenizerBeside(const std::string& model);

}  // namespace quintet
