// Functions that explain why Quintet cannot read a directory as a model, and functions that list
// the files of a model that Quintet ignores although other programs use them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace quintet {

// Returns the names of the entries of a directory, sorted; none if it cannot be read.
std::vector<std::string> EntryNames(const std::string& directory);

// OK if the directory has config.json, and model.safetensors or its index. Otherwise the error
// names what the directory contains instead (PyTorch, TensorFlow or Flax weights, GGUF, ONNX, a
// PEFT adapter, a variant such as model.fp16.safetensors, sub-directories with models, ...) and
// what to do. The code is INVALID_ARGUMENT, or NOT_FOUND if nothing in the directory looks like a
// model.
absl::Status CheckModelFiles(const std::string& directory);

// Makes the error message for a directory that has neither model.safetensors nor the index of its
// shards; CheckModelFiles returns this error.
absl::Status ExplainNoWeights(const std::string& directory);

// Returns a message that explains why the file `path` is not a model. For users who passed a file
// instead of a directory.
std::string ExplainFile(const std::string& path);

// Returns one sentence for each file of the directory that Quintet ignores although the file could
// change results: adapters, other weights, Python code, tokenizers under names that are not read,
// files of sentence-transformers without modules.json. The sentences are sorted by file name; the
// one about Python code is the last. Files without effect on results (README.md, weights in other
// formats next to model.safetensors, optimizer states) are not listed.
std::vector<std::string> UnusedFileWarnings(const std::string& directory);

}  // namespace quintet
