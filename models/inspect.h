// Summarizes the contents of a model directory and lists likely mistakes. Reads headers,
// configuration and tokenizer, but not the weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config/config.h"
#include "models/config/generation_config.h"

namespace quintet {

struct TokenizerSummary {
  // The file from which the tokenizer was read; "bytes" for ByT5; empty if there is no tokenizer.
  std::string file;
  int64_t vocab = 0;
  int32_t eos_id = -1, pad_id = -1, unk_id = -1, bos_id = -1;
};

struct Inspection {
  ModelConfig config;  // scale_logits is set
  GenerationDefaults generation;
  TokenizerSummary tokenizer;
  std::vector<std::pair<std::string, int64_t>> files;  // name and bytes, sorted by name
  std::map<std::string, int64_t> stored_values;        // "BF16" -> number of values of that dtype
  std::string weights_sha256;                          // written by `quintet convert`, else empty
  std::vector<std::string> warnings;                   // UnusedFileWarnings and FindWarnings
};

// Returns a summary of `model`, a path that FindModel has returned, or the error that loading the
// model would return. `tokenizer`: as in FindTokenizer. Detects only errors in headers,
// config.json, generation_config.json and tokenizer files.
absl::StatusOr<Inspection> InspectModel(const std::string& model, const std::string& tokenizer,
                                        bool follow_symlinks);

// Lists likely mistakes in the directory. Each is one sentence that names the file and field.
std::vector<std::string> FindWarnings(const Inspection& inspection);

}  // namespace quintet
