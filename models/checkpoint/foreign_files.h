// Explains directories whose weights are in a format that Quintet does not read, and finds files
// that it does not use although other programs do.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace quintet {

// Names of the entries of a directory, sorted; none if it cannot be read.
std::vector<std::string> EntryNames(const std::string& directory);

// OK if the directory has config.json, and model.safetensors or its index. Otherwise an error that
// names what it holds instead (PyTorch, TensorFlow or Flax weights, GGUF, ONNX, a PEFT adapter, a
// variant such as model.fp16.safetensors, sub-directories with models, ...) and what to do.
// INVALID_ARGUMENT, or NOT_FOUND if nothing in it looks like a model.
absl::Status CheckModelFiles(const std::string& directory);

// The error of CheckModelFiles for a directory without model.safetensors and without its index.
absl::Status ExplainNoWeights(const std::string& directory);

// Why the file `path` is not a model, for a user who passed it instead of a directory.
std::string ExplainFile(const std::string& path);

// One sentence for each file of the directory that Quintet does not read although it could change
// results: adapters, other weights, code, tokenizers under names that are not read. In order of the
// file names. Files without effect on results (README.md, weights in other formats next to
// model.safetensors, optimizer states) are not listed.
std::vector<std::string> UnusedFileWarnings(const std::string& directory);

}  // namespace quintet
