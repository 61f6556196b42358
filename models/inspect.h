// What a model directory holds, and what looks odd about it. Reads headers, configuration and
// tokenizer, never the weights themselves.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config.h"

namespace quintet {

struct TokenizerSummary {
  std::string file;  // that it was read from; "bytes" for ByT5; empty: the directory holds none
  int64_t vocab = 0;
  int32_t eos_id = -1, pad_id = -1, unk_id = -1, bos_id = -1;
};

struct Inspection {
  ModelConfig config;  // scale_logits settled
  GenerationDefaults generation;
  TokenizerSummary tokenizer;
  std::vector<std::pair<std::string, int64_t>> files;  // name and bytes, by name
  std::map<std::string, int64_t> stored_values;        // "BF16": number of values of that type
  std::string weights_sha256;                          // as convert recorded it, else empty
  std::vector<std::string> warnings;
};

// Errors are those of loading the model, as far as headers, config.json, generation_config.json and
// tokenizer files show them.
absl::StatusOr<Inspection> InspectModel(const std::string& directory, bool follow_symlinks);

// Oddities of what was read; each is one sentence that names the file's field.
std::vector<std::string> FindOddities(const Inspection& inspection);

}  // namespace quintet
