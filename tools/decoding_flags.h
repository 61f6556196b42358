// Flags for decoding: one for each field of DecodingRequest, named like the field but with dashes.
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
// AddSamplingFlags and AddLogitsProcessorFlags each add a part of the flags of AddDecodingFlags:
// the sampling parameters without --seed, and the parameters of the logits processors.
void AddSamplingFlags(CLI::App* command, DecodingFlags* flags);
void AddLogitsProcessorFlags(CLI::App* command, DecodingFlags* flags);

// Builds the DecodingRequest from the flags. INVALID_ARGUMENT names a flag whose value is
// malformed; ranges and combinations are checked later, by ResolveDecoding. `tokenizer` may be null
// unless --decoder-prefix is set.
absl::StatusOr<DecodingRequest> BuildDecodingRequest(const DecodingFlags& flags,
                                                     const Tokenizer* tokenizer);

}  // namespace quintet
