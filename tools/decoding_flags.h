// Decoding flags: one for each field of DecodingRequest. A flag has the field's name with dashes
// instead of underscores.
#pragma once

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "engine/options.h"
#include "models/tokenizers/tokenizer.h"

namespace quintet {

struct DecodingFlags {
  DecodingRequest request;
  std::string bad_words, early_stopping, prefix_text;
  std::vector<int32_t> prefix_ids;
  bool do_sample = false, include_stop = false, ignore_eos = false, logprobs = false;
  bool return_scores = false, echo = false;
  DecodingLimits limits;
};
void AddDecodingFlags(CLI::App* command, DecodingFlags* flags);
// Each of these two functions adds a part of the flags that AddDecodingFlags adds. AddSamplingFlags
// adds the sampling parameters except --seed; AddLogitsProcessorFlags adds the parameters of the
// logits processors.
void AddSamplingFlags(CLI::App* command, DecodingFlags* flags);
void AddLogitsProcessorFlags(CLI::App* command, DecodingFlags* flags);

// Builds a DecodingRequest from the flags. Returns INVALID_ARGUMENT, which names the flag, if a
// value is malformed. ResolveDecoding checks ranges and combinations later. `tokenizer` may be null
// unless --decoder-prefix is set.
absl::StatusOr<DecodingRequest> BuildDecodingRequest(const DecodingFlags& flags,
                                                     const Tokenizer* tokenizer);

}  // namespace quintet
